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
from attn_mlir.errors import SpecError

MASKS: tuple[type[Mask], ...] = (NullMask, CausalMask)


def mask_named(keyword: str) -> Mask:
    """Returns the mask without parameters of a keyword, such as `causal` of `#attn.causal`.

    Raises:
      SpecError: no mask has that keyword.
    """
    for mask in MASKS:
        if mask.keyword == keyword:
            return mask()
    allowed = ", ".join(mask.keyword for mask in MASKS)
    raise SpecError(f"mask {keyword!r} does not exist: allowed are {allowed}")


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
    "mask_named",
]
