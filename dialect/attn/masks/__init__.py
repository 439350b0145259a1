"""The masks of the `attn` dialect, one file each; a new mask is a new file and a line here."""

from . import combined
from .arithmetic import INTS, Arith, ColumnRange, IntArith, TileRange
from .base import Edges, Mask
from .causal import CausalMask
from .chunked import ChunkedMask
from .combined import AndMask, NotMask, OrMask
from .null import NullMask
from .prefix import PrefixMask
from .window import WindowMask

Mask.combinations = combined  # `combined` needs the class of masks, so masks do not import it

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

PYTHON_NAMES = {"full": "null", "sliding_window": "window", "prefix_lm": "prefix"}
"""Keywords of masks by the names of the functions of `attn_mlir` that make them, where these differ."""

__all__ = [
    "INTS",
    "MASKS",
    "PYTHON_NAMES",
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
