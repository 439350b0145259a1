"""Checks of types that the verifiers of operations share, and the report of their errors."""

from collections.abc import Collection, Mapping
from typing import Any

from attn_mlir.dialect.attn.shapes import Axes, logical_types, rank_misfit
from attn_mlir.element_types import WIDE_MLIR


def verified(op: Any, misfit: str) -> bool:
    """Whether a verifier found no error; emits an error otherwise.

    Args:
      misfit: the text after "op expects": the expected and the actual value; "" if there is no
        error.
    """
    if misfit:
        op.location.emit_error(f"'{op.OPERATION_NAME}' op expects {misfit}")
    return not misfit


def tensors_misfit(op: Any, axes: Mapping[str, Axes]) -> str:
    """The error in the ranks of operands and results, which may be views; "" if none.

    Args:
      axes: axis names of every operand and result, by its name.
    """
    shown = {name: getattr(op, name).type for name in axes}
    return rank_misfit(logical_types(op, axes), axes, shown)


def wide_misfit(op: Any, axes: Mapping[str, Axes], of_f32: Collection[str]) -> str:
    """The error in ranks and element types of an operation on 16-bit tensors; "" if none.

    Args:
      axes: axis names of every operand and result, by its name; the first one determines the
        element type of all.
      of_f32: names of operands and results with f32 elements; the operand `scale` is f32 as well.
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
