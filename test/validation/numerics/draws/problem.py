"""A drawn attention problem: what the axes fill in, how it is run, and how it is judged."""

from __future__ import annotations

import ctypes
import zlib
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

import attn_mlir as am
from attn_mlir.reference import attention_f64, attention_yardstick, compare, sequences
from attn_mlir.reference.sums import SUM_BITS
from attn_mlir.runtime.call.binding import Bound
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import DeviceChoice, Launch
from attn_mlir.validation.numerics.stored import Form

from .calls import ARRAYS, PLAIN, attend

Array = npt.NDArray[Any]

HELD = "mha-registers"
TILE = 128  # rows and columns of a tile of scores
HOLE = 3  # rows of NaN behind each sequence where not all rows are used
SMALL_DRAWS = 30  # draws with smaller numbers are small; the suite runs some of them
POISON = 0xFF  # of every byte of an output before the launch: NaN in each type
MAX_COST = (1.5, 5.0)  # of a small and of another one: tiles of 128 x 128 scores at head size 128


class Outcome(NamedTuple):
    """What a run gave.

    Attributes:
      wrong: what is wrong with the numbers, or nothing.
      ptx_lines, warp_instructions: of all kernels.
    """

    wrong: str
    ptx_lines: int
    warp_instructions: int


@dataclass(frozen=True)
class _Watching(am.EmulatorDevice):
    """An emulator where outputs are NaN before each launch; it counts what it runs."""

    launches: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def launch(self, bundle: Bundle, bound: Bound, stream: object | None) -> Launch:
        for tensor in bundle.manifest.tensors:
            if tensor.role == "out":
                output = bound.tensors[tensor.name]
                ctypes.memset(output.address, POISON, output.span_bytes)
        done = super().launch(bundle, bound, stream)
        self.launches.append((bundle.ptx.count("\n"), done.warp_instructions or 0))
        return done


@dataclass
class Problem:
    """Sizes and options, each with its plain value; an axis changes some of them.

    Attributes:
      seed: of the draw; each axis has random numbers of its own, see `random`.
      batch, sq, sk, heads, kv_heads, d, dv: sizes.
      dtype: of q, k and v; of q alone where there is a `kv_dtype`.
      kv_dtype: of k and v, if they have 8 bits under a q of 16.
      layout: how the operands lie in memory.
      growing: whether later keys give larger scores, so that row maxima keep rising.
      is_ragged: whether queries and keys are stored as [total, heads, head_dim], by offsets; only
        in this or the next case do lengths differ.
      used: which side has positions that do not exist, NaN in memory: queries `q`, keys `k`; or
        `cache`: keys, told without the new ones, or with them if `counts_new`.
      cache: the form of the cache that keys and values are stored in, if they are.
      scale_groups: factors of a row of K and of V where every position of the cache has its own, of
        `scale_dtype`.
      block_size: of the block mask that carries mask and predicate, if there is one.
      factors: of the numbers of q, k and v, by name.
      options: of `attention` and of the reference.
      call: of `attention` alone.
      device: of `EmulatorDevice`.
      mode, arguments: how the call is made and what its arrays are; see `calls`.
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
    kv_dtype: Any = None
    layout: Literal["dense", "heads first", "padded"] = "dense"
    growing: bool = False
    is_ragged: bool = False
    used: frozenset[str] = frozenset()
    counts_new: bool = False
    cache: Form | None = None
    scale_groups: tuple[int, int] | None = None
    scale_dtype: Any = np.float32
    block_size: tuple[int, int] | None = None
    factors: dict[str, float] = field(default_factory=dict[str, float])
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    call: dict[str, Any] = field(default_factory=dict[str, Any])
    device: dict[str, Any] = field(default_factory=lambda: {"multiprocessors": 2})
    mode: str = PLAIN
    arguments: str = ARRAYS

    def random(self, what: str) -> np.random.Generator:
        """Random numbers for one purpose: further axes do not change those of others."""
        return np.random.default_rng([self.seed, zlib.crc32(what.encode())])

    @property
    def is_narrow(self) -> bool:
        """Whether q has 8-bit elements."""
        return np.dtype(self.dtype).itemsize == 1

    @property
    def stored_dtype(self) -> Any:
        """Of k and v."""
        return self.dtype if self.kv_dtype is None else self.kv_dtype

    @property
    def stores_narrow(self) -> bool:
        """Whether k and v have 8-bit elements."""
        return np.dtype(self.stored_dtype).itemsize == 1

    @property
    def is_plain(self) -> bool:
        """Whether all sequences are equally long and lie in tensors of rank 4."""
        return not self.is_ragged and not self.used and self.cache is None

    @property
    def streams(self) -> bool:
        """Whether its kernel streams keys past few queries."""
        asked = self.call.get("schedule")
        by_default = not asked and self.device.get("target") == "sm_90a"
        by_cache = self.kv_dtype is not None or self.scale_groups is not None
        return asked == "mha-streaming" or by_default or by_cache

    @property
    def is_tiled(self) -> bool:
        """Whether its kernel is the one of many queries that targets with tensor memory have."""
        is_swapped = self.call.get("schedule") == "mha-swapped"
        return "target" not in self.device and not self.streams and not is_swapped

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
        """Random values of the standard normal distribution."""
        return self.random(what).standard_normal(shape).astype(dtype)

    def most(self, side: str) -> int:
        """The most positions that a sequence may have, of queries `q` or keys `k`."""
        return self.sq if side == "q" else self.sk

    def hole(self, side: str) -> int:
        """Rows of NaN behind each sequence."""
        return min(HOLE, self.most(side)) if self.is_ragged and side in self.used else 0

    def lengths(self, side: str) -> npt.NDArray[np.int32]:
        """Positions of each sequence that exist, of queries `q` or keys `k`, one as long as any."""
        most = self.most(side) - self.hole(side)
        is_cached = side == "k" and self.cache is not None
        is_equal = side not in self.used and (side == "q" or not self.used) and not is_cached
        if not self.is_ragged and is_equal:
            return np.full(self.batch, most, np.int32)
        random = self.random(f"lengths {side}")
        lengths = random.integers(0, most + 1, self.batch)
        lengths[random.random(self.batch) < 0.25] = 0
        lengths[random.integers(self.batch)] = most
        holds_new = "cache" in self.used or (self.cache is not None and not self.cache.counts_new)
        if holds_new and side == "k":  # the new keys are among them
            lengths = np.maximum(lengths, self.lengths("q"))
        return lengths.astype(np.int32)

    def told(self) -> dict[str, Any]:
        """The arguments that tell the lengths."""
        told: dict[str, Any] = {}
        for side in ("q", "k") if self.cache is None else ("q",):
            lengths = self.lengths(side)
            if self.is_ragged:
                ends = np.cumsum([0, *(lengths + self.hole(side))])
                told[f"cu_seqlens_{side}"] = ends.astype(np.int32)
                told[f"max_seqlen_{side}"] = self.most(side)
            if side in self.used:
                told[f"seqused_{side}"] = lengths
        if "cache" in self.used:
            new = 0 if self.counts_new else self.lengths("q")
            told["cache_seqlens"] = self.lengths("k") - new
            told["cache_counts_new"] = self.counts_new
        return told

    def _stored(self, array: Array, side: str) -> Array:
        """A dense operand as the lengths have it, NaN where no position is."""
        if self.is_plain or (side == "k" and self.cache is not None):
            return array
        lengths = self.lengths(side)
        if self.is_ragged:
            nothing = np.full((self.hole(side), *array.shape[2:]), np.nan, array.dtype)
            parts = [part for b, n in enumerate(lengths) for part in (array[b, :n], nothing)]
            return np.concatenate(parts)
        for b, n in enumerate(lengths):
            array[b, n:] = np.nan
        return array

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
        for array, name in zip(arrays, "qkv", strict=True):
            array *= np.float32(self.factors.get(name, 1.0))
        return [
            self._laid_out(self._stored(array.astype(dtype), side))
            for array, side, dtype in zip(
                arrays, "qkk", (self.dtype, self.stored_dtype, self.stored_dtype), strict=True
            )
        ]

    def _given(self, k: Array, v: Array) -> tuple[Any, ...]:
        """k and v, or the cache that holds them."""
        if self.cache is None:
            return k, v
        lengths = self.lengths("k")
        keys, values = ([side[b, :n] for b, n in enumerate(lengths)] for side in (k, v))
        new, random = self.lengths("q").tolist(), self.random("cache")
        paged = self.cache.page_size > 0
        names = {"k_descale": "k_scale", "v_descale": "v_scale"} if paged else {}
        factors = {new: self.options[old] for old, new in names.items() if old in self.options}
        if self.scale_groups is not None:
            for name, groups in zip(("k_scale", "v_scale"), self.scale_groups, strict=True):
                sizes = np.exp(1.5 * self.normal(name, self.batch, self.sk, self.kv_heads, groups))
                found = sizes.astype(self.scale_dtype)
                factors[name] = [found[b, :n] for b, n in enumerate(lengths)]
        return (self.cache.stored(keys, values, new, random, self.sk, **factors),)

    def _laid_out(self, array: Array) -> Array:
        """The same numbers, elsewhere in memory."""
        if self.layout == "heads first":
            return np.ascontiguousarray(array.swapaxes(-3, -2)).swapaxes(-3, -2)
        if self.layout == "padded":  # NaN between the rows
            wide = np.full((*array.shape[:-1], array.shape[-1] + 16), np.nan, array.dtype)
            wide[..., : array.shape[-1]] = array
            return wide[..., : array.shape[-1]]
        return array

    def _visibility(self) -> dict[str, Any]:
        """Options in the place of `mask` and `mask_mod`, where a block mask was made of these."""
        if self.block_size is None:
            return {}
        mask, predicate = self.options.get("mask"), self.options.get("mask_mod")
        sizes = (self.batch, self.heads, self.sq, self.sk)
        blocks = am.block_mask(predicate, *sizes, mask=mask, block_size=self.block_size)
        return {"mask": None, "mask_mod": None, "block_mask": blocks}

    def run(self) -> Outcome:
        """Runs the problem on the emulator and judges every element."""
        device = _Watching(**self.device)
        wrong = self.wrong_on(device)
        lines, instructions = (sum(counts) for counts in zip((0, 0), *device.launches, strict=True))
        return Outcome(wrong, lines, instructions)

    @property
    def target(self) -> str:
        """The chip that the problem is for."""
        return str(self.device.get("target", "sm_100a"))

    def wrong_on(self, device: DeviceChoice) -> str:
        """Runs the problem on any device: what is wrong with the numbers, or nothing."""
        is_narrow = np.dtype(self.dtype).itemsize == 1 and self.call.get("schedule") == HELD
        cuts = device == "cuda" and is_narrow
        return self._judged(*self.launched_on(device), score_bits=SUM_BITS if cuts else None)

    def launched_on(self, device: DeviceChoice) -> tuple[Any, ...]:
        """Runs the problem on any device: q, k and v or a cache, O, LSE or None, and what told the
        lengths."""
        q, k, v = self.operands()
        given, told = self._given(k, v), self.told()
        options = {**self.options, **self.call, **told, **self._visibility()}
        if self.cache is not None and self.cache.page_size:  # the cache has them
            options = {n: x for n, x in options.items() if n not in ("k_descale", "v_descale")}
        result = attend(self.mode, self.arguments, (q, *given), options, device)
        o, lse = result if self.call.get("return_lse") else (result, None)
        return (q, given, o, lse, told)

    def _judged(
        self,
        q: Array,
        given: tuple[Any, ...],
        o: Array,
        lse: Array | None,
        told: dict[str, Any],
        *,
        score_bits: int | None,
    ) -> str:
        """What is wrong with the first sequence that is, or nothing."""
        places = {name: value for name, value in told.items() if isinstance(value, np.ndarray)}
        if self.counts_new:
            places["seqused_k"] = places.pop("cache_seqlens")
        for one in sequences(q, *given, **places):
            options = {**self.options, "first_batch": one.batch}
            truth = attention_f64(one.q, one.k, one.v, **options)
            yardstick = attention_yardstick(
                *(one.q, one.k, one.v), out_dtype=o.dtype, score_bits=score_bits, **options
            )
            own_lse = None if lse is None else lse[one.lse][None]
            verdict = compare(o[one.o][None], own_lse, truth, yardstick)
            if not verdict.ok:
                return f"sequence {one.batch}: {verdict}"
        return ""
