"""The masks of the `attn` dialect, one file each; a new mask is a new file and a line here."""

from attn_mlir.dialect.attn.masks.arithmetic import (
    INTS,
    Arith,
    ColumnRange,
    IntArith,
    TileRange,
)
from attn_mlir.dialect.attn.masks.base import Edges, Mask
from attn_mlir.dialect.attn.masks.causal import CausalMask
from attn_mlir.dialect.attn.masks.chunked import ChunkedMask
from attn_mlir.dialect.attn.masks.combined import AndMask, NotMask, OrMask
from attn_mlir.dialect.attn.masks.null import NullMask
from attn_mlir.dialect.attn.masks.prefix import PrefixMask
from attn_mlir.dialect.attn.masks.window import WindowMask

MASKS: tuple[type[Mask], ...] = (
    NullMask,
    CausalMask,
    WindowMask,
    ChunkedMask,
    PrefixMask,
    AndMask,
    OrMask,
    NotMask,
)

__all__ = [
    "INTS",
    "MASKS",
    "AndMask",
    "Arith",
    "CausalMask",
    "ChunkedMask",
    "ColumnRange",
    "Edges",
    "IntArith",
    "Mask",
    "NotMask",
    "NullMask",
    "OrMask",
    "PrefixMask",
    "TileRange",
    "WindowMask",
]
