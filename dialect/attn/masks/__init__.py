"""The masks of the `attn` dialect, one file each; a new mask is a new file and a line here."""

from attn_mlir.dialect.attn.masks.base import (
    INTS,
    Arith,
    ColumnRange,
    IntArith,
    Mask,
    TileRange,
)
from attn_mlir.dialect.attn.masks.causal import CausalMask
from attn_mlir.dialect.attn.masks.null import NullMask

MASKS: tuple[type[Mask], ...] = (NullMask, CausalMask)

__all__ = [
    "INTS",
    "MASKS",
    "Arith",
    "CausalMask",
    "ColumnRange",
    "IntArith",
    "Mask",
    "NullMask",
    "TileRange",
]
