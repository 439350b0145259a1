"""The masks of the `attn` dialect; the file of each registers it, and a new mask is a new file."""

from . import all_files, combined
from .arithmetic import INTS, Arith, ColumnRange, IntArith, RowRange, TileRange
from .base import Edges, Mask
from .causal import CausalMask, causal
from .chunked import ChunkedMask, chunked
from .combined import AndMask, NotMask, OrMask
from .null import NullMask, full
from .prefix import PrefixMask, prefix_lm
from .registry import KINDS, MASKS, PYTHON_NAMES, Kind, makes, public, register
from .transposed import Sight, Transposed
from .window import WindowMask, sliding_window

Mask.combinations = combined  # `combined` needs the class of masks, so masks do not import it

__all__ = [
    "INTS",
    "KINDS",
    "MASKS",
    "PYTHON_NAMES",
    "AndMask",
    "Arith",
    "CausalMask",
    "ChunkedMask",
    "ColumnRange",
    "Edges",
    "IntArith",
    "Kind",
    "Mask",
    "NotMask",
    "NullMask",
    "OrMask",
    "PrefixMask",
    "RowRange",
    "Sight",
    "TileRange",
    "Transposed",
    "WindowMask",
    "all_files",
    "causal",
    "chunked",
    "full",
    "makes",
    "prefix_lm",
    "public",
    "register",
    "sliding_window",
]
