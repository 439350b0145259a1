"""Checks of the shapes of operands and results: axes of one name have one extent."""

from collections.abc import Collection, Mapping
from typing import Any

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn.storage import logical_type, stored_type

Axes = tuple[str, ...]


def axes_in_memory(
    op: Any, axes: Mapping[str, Axes], ragged: Mapping[str, Mapping[str, Axes]]
) -> dict[str, Axes]:
    """Axis names of every operand and result that an operation has, as they are stored.

    Args:
      axes: axis names by the name of an operand or result.
      ragged: for an operand's name, the axis names of the tensors that are stored as this operand
        is; they replace those of `axes` if its sequences are stored without an axis of their own.
    """
    own = {name: names for name, names in axes.items() if hasattr(op, name)}
    for operand, stored_alike in ragged.items():
        if is_ragged(getattr(op, operand), len(axes[operand])):
            own |= {name: names for name, names in stored_alike.items() if name in own}
    return own


def is_ragged(operand: Any, rank: int) -> bool:
    """Whether an operand is a view whose rows are stored without an axis of sequences.

    Args:
      rank: rank with the axis of sequences.
    """
    stored = stored_type(operand)
    is_tensor = isinstance(stored, ir.RankedTensorType)
    return is_tensor and operand.type != stored and stored.rank < rank


def logical_types(op: Any, names: Collection[str]) -> dict[str, Any]:
    """The logical types of some operands and results, by name."""
    return {name: logical_type(getattr(op, name)) for name in names}


def rank_misfit(
    types: Mapping[str, Any], axes: Mapping[str, Axes], shown: Mapping[str, Any]
) -> str:
    """The error in the ranks of an operation's tensors; "" if none.

    Args:
      types: what each operand and result stands for, by its name.
      axes: names of the axes of each.
      shown: the types as messages show them.
    """
    for name, own in axes.items():
        kind = types[name]
        if not isinstance(kind, ir.RankedTensorType) or kind.rank != len(own):
            return f"{name} to be a tensor [{', '.join(own)}], got {shown[name]}"
    return ""


def shape_misfit(
    types: Mapping[str, Any], axes: Mapping[str, Axes], static: Collection[str]
) -> str:
    """The error in the extents of tensors of the right ranks; "" if none.

    Args:
      types, axes: as of `rank_misfit`.
      static: axes that shape the code, and have to be at least 1.
    """
    known: dict[str, tuple[str, int]] = {}
    for name, own in axes.items():
        kind = types[name]
        for position, axis in enumerate(own):
            if kind.is_dynamic_dim(position):
                if axis in static:
                    return f"{axis} of {name} to be static, got {kind}"
                continue
            length = kind.get_dim_size(position)
            if axis in static and length < 1:
                return f"{axis} of {name} to be at least 1, got {length}"
            first, expected = known.setdefault(axis, (name, length))
            if length != expected:
                return f"{axis} of {name} to be {expected} as in {first}, got {length}"
    return ""
