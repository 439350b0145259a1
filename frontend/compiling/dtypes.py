"""Dtypes that kernels have, and the many ways in which people name them."""

from __future__ import annotations

from collections.abc import Sequence

from attn_mlir.errors import SpecError, shown

DTYPES = ("bf16", "f16", "e4m3", "e5m2")
NARROW_DTYPES = ("e4m3", "e5m2")  # of 8 bits
WIDE_DTYPES = ("bf16", "f16")  # of 16
SCALE_DTYPES = ("f32", "f16", "bf16")  # of factors that every position of a cache has of its own
WIDER_DTYPES = ("f32", "f64")  # of arrays that no kernel takes until they are converted
OUT_DTYPES = ("bf16", "f16", "f32")

_SPELLINGS = {
    "bf16": "bf16", "bfloat16": "bf16", "torch.bfloat16": "bf16",
    "f16": "f16", "fp16": "f16", "float16": "f16", "half": "f16", "torch.float16": "f16",
    "e4m3": "e4m3", "float8_e4m3fn": "e4m3", "torch.float8_e4m3fn": "e4m3",
    "e5m2": "e5m2", "float8_e5m2": "e5m2", "torch.float8_e5m2": "e5m2",
    "f32": "f32", "fp32": "f32", "float32": "f32", "float": "f32", "torch.float32": "f32",
}  # fmt: skip


def dtype_name(dtype: object, argument: str, allowed: Sequence[str]) -> str:
    """Our name of a dtype.

    Args:
      dtype: a name, or a dtype of numpy or torch.
      argument: what it was passed as.
      allowed: names that have a kernel.

    Raises:
      SpecError: not one of these.
    """
    spellings = [dtype] if isinstance(dtype, str) else [getattr(dtype, "name", None)]
    spellings += [getattr(dtype, "__name__", None), shown(dtype)]
    for text in spellings:
        if isinstance(text, str) and _SPELLINGS.get(text) in allowed:
            return _SPELLINGS[text]
    raise SpecError(f"{argument} {shown(dtype)} has no kernel: supported are {', '.join(allowed)}")


def refused_dtype(name: str, dtype: str, allowed: Sequence[str]) -> SpecError:
    """The error for an array of a dtype that has no kernel."""
    what = f"{name} has dtype {dtype}, allowed are {', '.join(allowed)}"
    if dtype not in WIDER_DTYPES or "bf16" not in allowed:
        return SpecError(what)
    return SpecError(
        f"{what}: convert it by {name}.to(torch.bfloat16) or {name}.astype(ml_dtypes.bfloat16); "
        "sums are in f32 all the same"
    )
