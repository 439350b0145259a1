"""Checks that the operands and results of operations share:
axes of one name are of one length.
"""

from collections.abc import Collection, Mapping
from typing import Any

from attn_mlir.dialect._mlir import ir

Axes = tuple[str, ...]


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
