"""Checks that a tensor map can describe a tensor: its strides and its address."""

from __future__ import annotations

from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.tensormap import (
    ADDRESS_ALIGNMENT_BYTES,
    STRIDE_LIMIT_BYTES,
    STRIDE_MULTIPLE_BYTES,
)
from attn_mlir.runtime.call.tensors import TensorView

DENSE = "pass a dense copy, such as {name}.contiguous() of torch or numpy.ascontiguousarray({name})"
COPY = "pass a copy, {name}.clone() of torch or {name}.copy() of numpy"


def misfit(tensor: TensorView) -> tuple[str, str] | None:
    """Why no tensor map describes a tensor, and what to pass instead; None if one does."""
    if tensor.empty:
        return None
    *outer, inner = tensor.strides
    if tensor.shape[-1] > 1 and inner != 1:
        return (
            f"has strides {list(tensor.strides)}: its last axis must be dense (stride 1), got "
            f"{inner}",
            DENSE,
        )
    steps = [
        stride * tensor.item_bytes
        for extent, stride in zip(tensor.shape, outer, strict=False)
        if extent > 1
    ]
    if any(s % STRIDE_MULTIPLE_BYTES or not 0 <= s < STRIDE_LIMIT_BYTES for s in steps):
        return (
            f"has strides {list(tensor.strides)}: copies need strides of a multiple of "
            f"{STRIDE_MULTIPLE_BYTES} bytes from 0 to 2^40, got {steps} bytes",
            DENSE,
        )
    if tensor.address % ADDRESS_ALIGNMENT_BYTES:
        return (
            f"starts at {tensor.address:#x}: copies need a multiple of {ADDRESS_ALIGNMENT_BYTES} "
            "bytes",
            COPY,
        )
    return None


def check_copyable(tensor: TensorView, name: str) -> None:
    """Refuses a tensor that no kernel can copy from where it lies.

    Args:
      name: the caller's, for messages.

    Raises:
      SpecError: names the tensor, its strides or address, and what to pass instead.
    """
    if (problem := misfit(tensor)) is not None:
        what, advice = problem
        raise SpecError(f"{name} {what}; {advice.format(name=name)}")
