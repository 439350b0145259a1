"""Indexed rows of a tensor as fragments: `ws.load_rows` and `ws.store_rows`.

Each thread has the indices of its rows. Unless another operation fixes the layout, it has 16 bytes
of each of them, so that the threads of a row together access whole lines of memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.scalars import INT, compare, when

from ..layouts.fragments import COLUMN, Access, Layout, units_of_rows
from ..layouts.inference import Constraints, constrains
from ..layouts.shared import unit_elements
from ..state.checks import OpContext, check_dense_columns, legality_check
from ..state.handles import Fragment
from ..state.lowering import Lowering, element_pointer, lowers
from .global_access import load_where, pointer_after
from .values import from_accesses, is_writer, shifted, stored_value, thread_origin

Value = Any
MIN_BITS = 64  # of a row: 8 bytes, as for 8-bit elements converted from 16 bytes
RowsOp = ws.LoadRowsOp | ws.StoreRowsOp


@constrains(ws.LoadRowsOp)
@constrains(ws.StoreRowsOp)
def _constrain(c: Constraints, op: RowsOp) -> None:
    kind = ws.FragmentType(op.fragment.type)
    if len(kind.shape) == 1:
        c.same(op, [op.fragment, op.rows])
        return
    scheme = units_of_rows(c.warps, kind.shape[1], ws.element_bits(kind.element))
    if not scheme.misfit(kind.shape):
        c.prefers(op, op.fragment, scheme)
    c.view(op, op.fragment, op.rows, partial(Layout.without, axis=COLUMN))


@legality_check(ws.LoadRowsOp)
def _check_load(_: OpContext, op: ws.LoadRowsOp) -> None:
    _check(op, op.source)


@legality_check(ws.StoreRowsOp)
def _check_store(_: OpContext, op: ws.StoreRowsOp) -> None:
    _check(op, op.target)


def _check(op: RowsOp, tensor: Value) -> None:
    """Checks that a row is one element, or whole accesses along the last dimension, unlimited."""
    kind = ws.FragmentType(op.fragment.type)
    if isinstance(tensor.owner, ws.LimitOp):
        raise op_error(op, "expects a tensor without a limit")
    if len(kind.shape) == 1:
        return
    check_dense_columns(op, tensor)
    if kind.shape[1] * ws.element_bits(kind.element) % MIN_BITS:
        raise op_error(op, f"expects rows of whole {MIN_BITS // 8}-byte pieces, got {kind}")


@lowers(ws.LoadRowsOp)
def _load_rows(low: Lowering, op: ws.LoadRowsOp) -> None:
    kind, layout = ws.FragmentType(op.fragment.type), low.layouts[op.fragment]

    def loaded() -> Iterator[tuple[Access, Sequence[Value]]]:
        for accesses, exists, begin, remaining in _strips(low, op, op.source, layout):
            for access in accesses:
                inside = exists
                if remaining is not None:
                    inside = INT.both(exists, compare("sgt", remaining, access.column))
                yield access, load_where(inside, kind, access, begin)

    low[op.fragment] = from_accesses(kind, layout, loaded())


@lowers(ws.StoreRowsOp)
def _store_rows(low: Lowering, op: ws.StoreRowsOp) -> None:
    fragment: Fragment = low[op.fragment]
    if len(fragment.kind.shape) == 1:
        _store_elements(low, op, fragment)
        return
    element = fragment.kind.element
    for accesses, exists, begin, remaining in _strips(low, op, op.target, fragment.layout):
        with when(exists):
            for access in accesses:
                width = access.count * ws.element_bits(element) // 8
                inside = None if remaining is None else compare("sgt", remaining, access.column)
                with nullcontext() if inside is None else when(inside):
                    pointer = pointer_after(begin, access.column, element)
                    llvm.StoreOp(stored_value(fragment, access), pointer, alignment=width)


def _store_elements(low: Lowering, op: ws.StoreRowsOp, fragment: Fragment) -> None:
    """Stores an element of each row, by the first of the threads that hold copies."""
    writer = is_writer(low, fragment.layout)
    for number, access in zip(low[op.rows].parts, fragment.layout.accesses(), strict=True):
        position = [low[coord] for coord in op.coords]
        exists = _move_to_row(low, op.target, position, list[int](op.dims), number)
        with when(exists if writer is None else INT.both(exists, writer)):
            llvm.StoreOp(stored_value(fragment, access), element_pointer(low, op.target, position))


def _strips(
    low: Lowering, op: RowsOp, tensor: Value, layout: Layout
) -> Iterator[tuple[list[Access], Value, Value, Value | None]]:
    """The accesses to each row of this thread.

    Yields:
      The accesses; i1, whether the tensor has the row; a pointer to the thread's first element; and
      the number of columns from there to the tensor's end, None if they are enough.
    """
    kind = ws.FragmentType(op.fragment.type)
    *row_dims, column_dim = list[int](op.dims)
    origin, numbers = thread_origin(low, layout, COLUMN), low[op.rows].parts
    accesses = layout.accesses(unit_elements(ws.element_bits(kind.element)))
    for strip, several in groupby(accesses, key=lambda access: access.strip):
        position = [low[coord] for coord in op.coords]
        exists = _move_to_row(low, tensor, position, row_dims, numbers[strip])
        first = position[column_dim]
        position[column_dim] = INT.add(first, shifted(origin, 0))
        remaining = None
        if not _has_columns(tensor, op.coords[column_dim], kind.shape[1]):
            remaining = INT.sub(low.extent(tensor, column_dim), position[column_dim])
        yield list(several), exists, element_pointer(low, tensor, position), remaining


def _has_columns(tensor: Value, first: Value, count: int) -> bool:
    """Whether the tensor statically has `count` columns from `first` on."""
    kind, owner = ir.MemRefType(tensor.type), first.owner
    if kind.is_dynamic_dim(kind.rank - 1) or not isinstance(owner, arith.ConstantOp):
        return False
    begin = ir.IntegerAttr(owner.value).value
    return 0 <= begin <= kind.get_dim_size(kind.rank - 1) - count


def _move_to_row(
    low: Lowering, tensor: Value, coords: list[Value], dims: Sequence[int], number: Value
) -> Value:
    """Adds a row's index to the coordinates; returns i1: whether the tensor has that row."""
    steps = [number]
    if len(dims) > 1:
        inner = low.extent(tensor, dims[1])
        steps = [arith.DivUIOp(number, inner).result, arith.RemUIOp(number, inner).result]
    exists = compare("sge", number, 0)
    for dim, step in zip(dims, steps, strict=True):
        coords[dim] = INT.add(coords[dim], step)
        for check in (
            compare("sge", coords[dim], 0),
            compare("slt", coords[dim], low.extent(tensor, dim)),
        ):
            exists = INT.both(exists, check)
    return exists
