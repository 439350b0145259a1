"""A drawn attention problem: what the axes fill in, how it is run, and how it is judged."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

import attn_mlir as am
from attn_mlir.reference import Comparison, check_attention

Array = npt.NDArray[Any]

TILE = 128  # rows and columns of a tile
SMALL_DRAWS = 30  # the first so many are small, for the suite
MAX_COST = (1.5, 5.0)  # of a small and of another one: tiles of 128 x 128 scores at head size 128


@dataclass
class Problem:
    """Sizes and options, each with its plain value; an axis changes some of them.

    Attributes:
      seed: of the draw; each axis has random numbers of its own, see `random`.
      batch, sq, sk, heads, kv_heads, d, dv: sizes.
      dtype: of q, k and v.
      layout: how the operands lie in memory.
      growing: whether later keys give larger scores, so that row maxima keep rising.
      options: of `attention` and of the reference.
      call: of `attention` alone.
      device: of `EmulatorDevice`.
    """

    seed: int
    batch: int = 1
    sq: int = 16
    sk: int = 128
    heads: int = 1
    kv_heads: int = 1
    d: int = 64
    dv: int = 64
    dtype: Any = ml_dtypes.bfloat16
    layout: Literal["dense", "heads first", "padded"] = "dense"
    growing: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    call: dict[str, Any] = field(default_factory=dict[str, Any])
    device: dict[str, Any] = field(default_factory=lambda: {"multiprocessors": 2})

    def random(self, what: str) -> np.random.Generator:
        """Random numbers for one purpose: further axes do not change those of others."""
        return np.random.default_rng([self.seed, zlib.crc32(what.encode())])

    @property
    def max_cost(self) -> float:
        """What `cost` may be."""
        small, other = MAX_COST
        return small if self.seed < SMALL_DRAWS else other

    def cost(self, **sizes: int) -> float:
        """Tiles of scores, weighed by head size, with some sizes replaced."""
        s = {**vars(self), **sizes}
        group = s["heads"] // s["kv_heads"]
        packed = group if TILE % group == 0 else 1
        rows, columns = -(-s["sq"] * packed // TILE), max(1, -(-s["sk"] // TILE))
        tiles = s["batch"] * s["heads"] // packed * rows * columns
        return tiles * (s["d"] + s["dv"]) / (2 * TILE)

    def normal(self, what: str, *shape: int, dtype: Any = np.float32) -> Array:
        """A random array."""
        return self.random(what).standard_normal(shape).astype(dtype)

    def operands(self) -> list[Array]:
        """q, k and v."""
        k = self.normal("k", self.batch, self.sk, self.kv_heads, self.d)
        if self.growing:
            k *= np.geomspace(0.5, 4.0, max(self.sk, 1), dtype=np.float32)[: self.sk, None, None]
        arrays = [
            self.normal("q", self.batch, self.sq, self.heads, self.d),
            k,
            self.normal("v", self.batch, self.sk, self.kv_heads, self.dv),
        ]
        return [self._laid_out(array.astype(self.dtype)) for array in arrays]

    def _laid_out(self, array: Array) -> Array:
        """The same numbers, elsewhere in memory."""
        if self.layout == "heads first":
            return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
        if self.layout == "padded":  # NaN between the rows
            wide = np.full((*array.shape[:3], array.shape[3] + 8), np.nan, array.dtype)
            wide[..., : array.shape[3]] = array
            return wide[..., : array.shape[3]]
        return array

    def run(self) -> Comparison:
        """Runs the problem on the emulator and judges every element."""
        q, k, v = self.operands()
        device = am.EmulatorDevice(**self.device)
        result = am.attention(q, k, v, **self.options, **self.call, device=device)
        o, lse = result if self.call.get("return_lse") else (result, None)
        return check_attention(q, k, v, o, lse, **self.options)
