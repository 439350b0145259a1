"""Checks that the verifiers of operations share beside those of `shapes`, and their error."""

from collections.abc import Collection, Mapping
from typing import Any

from attn_mlir.dialect.attn.shapes import Axes, logical_types, rank_misfit
from attn_mlir.element_types import WIDE_MLIR


def verified(op: Any, misfit: str) -> bool:
    """Whether an operation is as its verifier wants it; emits an error if not.

    Args:
      misfit: an expectation and the value got, behind "op expects"; "" if there is no error.
    """
    if misfit:
        op.location.emit_error(f"'{op.OPERATION_NAME}' op expects {misfit}")
    return not misfit


def tensors_misfit(op: Any, axes: Mapping[str, Axes]) -> str:
    """The error in the ranks of operands and results, which may be views; "" if none.

    Args:
      axes: names of the axes of each.
    """
    shown = {name: getattr(op, name).type for name in axes}
    return rank_misfit(logical_types(op, axes), axes, shown)


def wide_misfit(op: Any, axes: Mapping[str, Axes], of_f32: Collection[str]) -> str:
    """The error in ranks and element types of an operation on rows of 16 bits; "" if none.

    Args:
      axes: names of the axes of each operand and result; the first gives the element type.
      of_f32: those whose elements are f32 instead; the operand `scale` is as well.
    """
    if misfit := tensors_misfit(op, axes):
        return misfit
    first, types = next(iter(axes)), logical_types(op, axes)
    element = str(types[first].element_type)
    if element not in WIDE_MLIR:
        return f"{first} elements of type {', '.join(WIDE_MLIR)}, got {element}"
    for name, kind in types.items():
        expected, said = (
            ("f32", "type f32") if name in of_f32 else (element, f"{first}'s type {element}")
        )
        if str(kind.element_type) != expected:
            return f"{name} elements of {said}, got {kind.element_type}"
    return scale_misfit(op)


def scale_misfit(op: Any) -> str:
    """The error in the type of the operand `scale`; "" if none."""
    return "" if str(op.scale.type) == "f32" else f"scale of type f32, got {op.scale.type}"


def group_misfit(op: Any) -> str:
    """The error in an operation's numbers of heads; "" if none."""
    if op.heads % op.kv_heads:
        return f"heads to be a multiple of kv_heads, got {op.heads} and {op.kv_heads}"
    return ""
