"""Reductions along either axis: over a thread's elements, then over threads by shuffles."""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from attn_mlir.dialect._mlir import arith, ir, nvvm, vector
from attn_mlir.dialect.scalars import constant
from attn_mlir.dialect.targets.limits import WARP_THREADS

from ..layouts.fragments import Layout
from ..state.handles import Fragment
from ..state.lowering import FULL_WARP
from .values import parts_of_strips

Value = Any


def crosses_warps(layout: Layout, axis: int) -> bool:
    """Whether a reduction along an axis would combine elements of several warps."""
    return any(weight * digit.count > WARP_THREADS for weight, digit in layout.thread_digits(axis))


def reduced(fragment: Fragment, init: Fragment, kind: str, axis: int) -> tuple[Value, ...]:
    """Reduces a fragment along an axis; returns the parts of a fragment in the layout of `init`.

    Args:
      fragment: f32, of rank 2.
      init: the fragment of rank 1 that the reduction starts from.
      kind: `add` or `max`; the maximum of a number and NaN is the number.
      axis: the axis that is reduced; each warp reduces its elements along it.
    """
    layout = fragment.layout
    strips = parts_of_strips(fragment)
    masks = [
        mask
        for weight, digit in layout.thread_digits(axis)
        for mask in (weight << bit for bit in range(digit.count.bit_length() - 1))
        if mask < WARP_THREADS
    ]
    if axis == layout.along:
        inside = _maximum if kind == "max" else _sum
    else:
        strips = list(zip(*strips, strict=True))
        inside = _across(arith.MaxNumFOp if kind == "max" else arith.AddFOp)
    starts = list(init.parts)
    if kind == "max" or not masks:
        totals = [inside(parts, start) for parts, start in zip(strips, starts, strict=True)]
        return tuple(_over_threads(total, masks, kind) for total in totals)
    totals = [_over_threads(inside(parts, None), masks, kind) for parts in strips]
    return tuple(arith.AddFOp(a, b).result for a, b in zip(starts, totals, strict=True))


def folded(fragment: Fragment, init: Fragment) -> tuple[Value, ...]:
    """Folds a fragment [rows, N] onto `init` [rows, n]; returns the parts of the result.

    Its column i is that of `init` plus the fragment's columns i, i + n, i + 2 n, ...
    """
    (width,) = init.layout.part_widths
    sums: list[Value] = []
    for parts, start in zip(parts_of_strips(fragment), init.parts, strict=True):
        level = [
            vector.ExtractStridedSliceOp(start.type, part, [first], [width], [1]).result
            for part in parts
            for first in range(0, part.type.shape[0], width)
        ]
        while len(level) > 1:
            pairs = zip_longest(level[::2], level[1::2])
            level = [a if b is None else arith.AddFOp(a, b).result for a, b in pairs]
        sums.append(arith.AddFOp(start, level[0]).result)
    return tuple(sums)


def _maximum(parts: Sequence[Value], init: Value) -> Value:
    """The maximum of vectors and `init`; LLVM makes a tree of 3-input maxima of each vector."""
    kind = ir.Attribute.parse("#vector.kind<maxnumf>")
    for part in parts:
        init = vector.ReductionOp(part.type.element_type, kind, part, acc=init).result
    return init


def _sum(parts: Sequence[Value], init: Value | None) -> Value:
    """The sum of vectors and `init`: first vectors of one width, then halves, then scalars."""
    parts = list(parts)
    while len(parts) > 1 and parts[-1].type == parts[0].type:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        odd = parts[len(parts) & ~1 :]
        parts = [arith.AddFOp(a, b).result for a, b in pairs] + odd
    singles = [element for part in parts for element in _halved(part)]
    total = singles.pop(0) if init is None else init
    for element in singles:
        total = arith.AddFOp(total, element).result
    return total


def _halved(part: Value) -> list[Value]:
    """Scalars with the sum of a vector: one, and another for each odd width while halving."""
    odd_elements: list[Value] = []
    while (width := part.type.shape[0]) > 1:
        half = width // 2
        if width % 2:
            odd_elements.append(vector.ExtractOp(part, [], [width - 1]).result)
        kind = ir.VectorType.get([half], part.type.element_type)
        low, high = (
            vector.ExtractStridedSliceOp(kind, part, [first], [half], [1]).result
            for first in (0, half)
        )
        part = arith.AddFOp(low, high).result
    return [vector.ExtractOp(part, [], [0]).result, *odd_elements]


def _across(operation: Any) -> Callable[[Sequence[Value], Value | None], Value]:
    """Combines the same part of all strips, as a tree."""

    def inside(parts: Sequence[Value], init: Value | None) -> Value:
        level = list(parts)
        while len(level) > 1:
            pairs = zip_longest(level[::2], level[1::2])
            level = [a if b is None else operation(a, b).result for a, b in pairs]
        return level[0] if init is None else operation(init, level[0]).result

    return inside


def _over_threads(value: Value, masks: Sequence[int], kind: str) -> Value:
    """A butterfly: all threads whose indices differ in these bits get the same value."""
    operation = arith.MaxNumFOp if kind == "max" else arith.AddFOp
    for mask in masks:
        value = operation(value, _exchanged(value, mask)).result
    return value


def _exchanged(value: Value, mask: int) -> Value:
    """The value of the lane whose index differs in the bits of a mask."""
    if isinstance(value.type, ir.VectorType):
        lanes = range(value.type.shape[0])
        several = [_exchanged(vector.ExtractOp(value, [], [i]).result, mask) for i in lanes]
        return vector.FromElementsOp(value.type, several).result
    butterfly = ir.Attribute.parse("#nvvm<shfl_kind bfly>")
    clamp = constant(WARP_THREADS - 1)
    return nvvm.ShflOp(
        constant(FULL_WARP), value, constant(mask), clamp, butterfly, results=[value.type]
    ).res
