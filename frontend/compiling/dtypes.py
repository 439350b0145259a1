"""Dtypes of kernels, and their spellings."""

from __future__ import annotations

from collections.abc import Sequence

from attn_mlir.element_types import NARROW, TYPES, WIDE
from attn_mlir.errors import SpecError, no_kernel, shown

NARROW_DTYPES, WIDE_DTYPES = NARROW, WIDE  # of 8 bits, and of 16
DTYPES = (*WIDE, *NARROW)
SCALE_DTYPES = ("f32", "f16", "bf16")  # of scales of a cache's positions
WIDER_DTYPES = ("f32", "f64")  # of arrays that no kernel takes until they are converted
OUT_DTYPES = (*WIDE, "f32")

_SPELLINGS = {spelling: row.name for row in TYPES for spelling in row.spellings}


def dtype_name(dtype: object, argument: str, allowed: Sequence[str]) -> str:
    """Our name of a dtype.

    Args:
      dtype: a name, or a dtype of numpy or torch.
      argument: what it was passed as.
      allowed: names that have a kernel.

    Raises:
      SpecError: not one of these, or of the other byte order.
    """
    if not getattr(dtype, "isnative", True):
        raise SpecError(f"{argument} {shown(dtype)} is of the other order of bytes")
    spellings = [dtype] if isinstance(dtype, str) else [getattr(dtype, "name", None)]
    spellings += [getattr(dtype, "__name__", None), shown(dtype)]
    for text in spellings:
        if isinstance(text, str) and _SPELLINGS.get(text) in allowed:
            return _SPELLINGS[text]
    supported = f"supported are {', '.join(allowed)}"
    raise SpecError(no_kernel(f"{argument} {shown(dtype)}", supported))


def refused_dtype(name: str, dtype: str, allowed: Sequence[str]) -> SpecError:
    """The error for an array of a dtype that has no kernel."""
    what = f"{name} has dtype {dtype}, allowed are {', '.join(allowed)}"
    if dtype not in WIDER_DTYPES or "bf16" not in allowed:
        return SpecError(what)
    return SpecError(
        f"{what}: convert it by {name}.to(torch.bfloat16) or {name}.astype(ml_dtypes.bfloat16); "
        "sums are in f32 all the same"
    )
