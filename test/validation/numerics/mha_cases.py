"""Which attention problems are checked on the emulator, under which schedules, and the inputs of each.

The whole table is the product of head sizes, dtypes, masks, (sq, sk) pairs, head ratios and schedules. Everything about
a case follows from its name, so a failure is repeated by its name alone.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import product
from typing import Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

HEAD_DIMS = (64, 128)
DTYPES = ("bf16", "f16")
MASKS = ("full", "causal")
LENGTHS = (  # (queries, keys)
    (1, 1),  # a single score
    (1, 513),  # decode-like; the last key tile has one column
    (127, 127),  # one row and one column short of a tile
    (128, 128),  # exactly one tile of each kind
    (129, 257),  # one row in the second query tile, one column in the third key tile
    (256, 256),  # a whole CTA
    (300, 77),  # causal: 223 queries see no key
    (77, 300),  # causal: every query sees a prefix of at least 224 keys
    (640, 640),  # three CTAs, five key tiles
)
RATIOS = (1, 4)  # query heads per key head
NUMPY_DTYPES = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
}
TILE_ROWS, TILE_COLUMNS = 256, 128  # query rows of a CTA, keys of a tile


@dataclass(frozen=True, order=True)
class Schedule:
    """How the emulator orders asynchronous work."""

    kind: Literal["fair", "adversarial"]
    seed: int = 0

    @property
    def name(self) -> str:
        """`fair`, or `adv3` for adversarial seed 3."""
        return "fair" if self.kind == "fair" else f"adv{self.seed}"

    @staticmethod
    def named(name: str) -> Schedule:
        """The inverse of `name`."""
        if name == "fair":
            return Schedule("fair")
        if name.startswith("adv") and name[3:].isdigit():
            return Schedule("adversarial", int(name[3:]))
        raise ValueError(f"schedule must be fair or advN, got {name!r}")


SCHEDULES = (Schedule("fair"), *(Schedule("adversarial", seed) for seed in range(1, 6)))


@dataclass(frozen=True)
class Inputs:
    """q [batch, sq, heads, d], k and v [batch, sk, kv_heads, d], in the kernel's dtype."""

    q: NDArray[np.generic]
    k: NDArray[np.generic]
    v: NDArray[np.generic]


@dataclass(frozen=True, order=True)
class Case:
    """One attention problem; lengths in tokens, `ratio` in query heads per key head."""

    head_dim: int
    dtype: str
    mask: str
    sq: int
    sk: int
    ratio: int

    @property
    def name(self) -> str:
        """Names the case, such as `d128-bf16-causal-g4-300x77`."""
        return f"d{self.head_dim}-{self.dtype}-{self.mask}-g{self.ratio}-{self.sq}x{self.sk}"

    @property
    def is_one_tile(self) -> bool:
        """One CTA and one key tile per head: cheap, so these cases have more heads and batches."""
        return self.sq <= TILE_ROWS and self.sk <= TILE_COLUMNS

    @property
    def kv_heads(self) -> int:
        """Two, so that a wrong head shows; larger grouped cases make do with one."""
        return 2 if self.is_one_tile or self.ratio == 1 else 1

    @property
    def heads(self) -> int:
        return self.kv_heads * self.ratio

    @property
    def batch(self) -> int:
        return 2 if self.is_one_tile and self.ratio == 1 else 1

    def inputs(self) -> Inputs:
        """Random values, the same for every schedule.

        Keys grow along the sequence for one key head and fade for the next, by a factor of 8 over the whole length: the
        running maximum then rises in some heads whichever way the kernel walks the key tiles, far enough that accumulated
        output must be rescaled, and hardly moves in others.
        """
        random = np.random.default_rng(zlib.crc32(self.name.encode()))
        dtype = NUMPY_DTYPES[self.dtype]

        def normal(length: int, heads: int) -> NDArray[np.float64]:
            return random.standard_normal((self.batch, length, heads, self.head_dim))

        k = normal(self.sk, self.kv_heads)
        gain = np.geomspace(0.5, 4.0, max(self.sk, 1))[: self.sk]
        first = int(random.integers(2))
        for head in range(self.kv_heads):
            k[:, :, head] *= (gain if (head + first) % 2 else gain[::-1])[None, :, None]
        return Inputs(
            normal(self.sq, self.heads).astype(dtype),
            k.astype(dtype),
            normal(self.sk, self.kv_heads).astype(dtype),
        )


def all_cases() -> list[Case]:
    """The whole table, cheapest lengths first."""
    lengths = sorted(LENGTHS, key=lambda pair: pair[0] * pair[1])
    return [
        Case(head_dim, dtype, mask, sq, sk, ratio)
        for (sq, sk), head_dim, dtype, mask, ratio in product(
            lengths, HEAD_DIMS, DTYPES, MASKS, RATIOS
        )
    ]


def case_named(name: str) -> Case:
    """The case of the table that has this name."""
    for case in all_cases():
        if case.name == name:
            return case
    raise ValueError(f"no case is called {name!r}")
