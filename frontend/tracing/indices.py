"""Integers of a score modifier that leave a captured tensor, or 32 bits, found before a launch.

A kernel moves an index into the tensor and lets integers wrap around, since it cannot complain.
PyTorch raises, and has more bits; its functions here refuse such a call where that can be known:
integers are computed in advance, for all coordinates of a call in the host's memory, and for the
first and last ones of a call on a GPU, whose tensors are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attn_mlir.arrays import host_arrays
from attn_mlir.dialect.attn.programs.evaluation import value_of
from attn_mlir.dialect.attn.programs.program import Node, Program
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.tensors import TensorView

INT32 = np.iinfo(np.int32)
_NUMPY_TYPES = {"f32": np.float32, "i64": np.int64, "i32": np.int64, "i1": np.bool_}
_AXES = {"batch": "batch", "head": "heads", "q": "sq", "k": "sk"}  # of coordinates

Array = npt.NDArray[Any]


def check_indices(
    program: Program, captured: Sequence[TensorView], sizes: Mapping[str, int]
) -> None:
    """Refuses a program that reads outside its tensors, or needs more bits than it has.

    Args:
      program: a score modifier.
      captured: what it reads, in its order.
      sizes: `batch`, `heads`, `sq` and `sk` of the call.

    Raises:
      SpecError: names the tensor, the index and the extent, or the operation and its result.
    """
    if 0 in sizes.values():
        return
    on_host = all(tensor.device == "cpu" for tensor in captured)
    named = {t.name: x for t, x in zip(program.tensors, captured, strict=True)}
    arrays = host_arrays(named) if on_host else {}
    at = {
        name: _coordinates(sizes[size], axis, whole=on_host)
        for axis, (name, size) in enumerate(_AXES.items())
    }
    values: list[Array | None] = []
    for node in program.nodes:
        args = [values[arg] for arg in node.args]
        if node.op == "load":
            tensor = program.tensors[int(node.value or 0)]
            for axis, (index, extent) in enumerate(
                zip(args, named[tensor.name].shape, strict=True)
            ):
                _check(tensor.name, axis, index, extent)
        values.append(_value(program, node, args, at, arrays))


def _coordinates(extent: int, axis: int, *, whole: bool) -> Array:
    """All coordinates along an axis, or the first and the last one, as an axis of four."""
    positions = np.arange(extent) if whole else np.array([0, extent - 1])
    shape = [1] * len(_AXES)
    shape[axis] = len(positions)
    return positions.reshape(shape)


def _value(
    program: Program,
    node: Node,
    args: Sequence[Array | None],
    at: Mapping[str, Array],
    arrays: Mapping[str, Array],
) -> Array | None:
    """The value of a node for these coordinates, or None if that depends on scores or on a GPU's
    memory.
    """
    if node.op == "argument":
        return at.get(str(node.value))
    if (node.op == "load" and not arrays) or any(arg is None for arg in args):
        return None
    with np.errstate(all="ignore"):
        value: Array = value_of(program, node, args, at, arrays, _NUMPY_TYPES)
    if node.type != "i32":
        return value
    if node.op == "cast":  # the function narrows it, and means to
        return value.astype(np.int32).astype(np.int64)
    if value.min() < INT32.min or value.max() > INT32.max:
        wrong = value.max() if value.max() > INT32.max else value.min()
        raise SpecError(
            f"{node.op} of integers gives {wrong}, and they have 32 bits: begin with .long() of one"
        )
    return value


def _check(name: str, axis: int, index: Array | None, extent: int) -> None:
    if index is None:
        return
    low, high = int(index.min()), int(index.max())
    if -extent <= low and high < extent:
        return
    wrong = high if high >= extent else low
    raise SpecError(
        f"{name} is indexed with {wrong} along axis {axis}, which has {extent}: move the index "
        "inside by clamp(), also where the result is not used"
    )
