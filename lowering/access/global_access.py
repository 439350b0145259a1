"""Fragments to and from global memory."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, scf, vector
from attn_mlir.dialect.scalars import INT, compare, i32, when

from ..layouts.fragments import COLUMN, ROW, WORD_BITS, Access, Layout
from ..layouts.shared import UNIT_BYTES
from ..state.handles import Fragment
from ..state.lowering import Lowering, cell_type, element_pointer
from .values import from_accesses, is_packed, is_writer, shifted, stored_value, thread_origin

Value = Any


def store_global(
    low: Lowering, fragment: Fragment, tensor: Value, coords: Sequence[Value], dims: Sequence[int]
) -> None:
    """Writes a fragment to a tensor, at most 16 bytes at a time.

    Rows outside the tensor are dropped, and so are columns if their extent is a run-time size.

    Args:
      low: the lowering.
      fragment: [rows, columns] or [rows].
      tensor: memref of the kernel.
      coords: coordinates of the fragment's first element, i32 each.
      dims: the dimension along which rows run, or two where row r is at (r / n, r mod n) for an
        inner extent n; then the one along which columns run, unless the fragment is [rows].
    """
    if len(fragment.kind.shape) == 1:
        _store_values(low, fragment, tensor, coords, dims)
        return
    layout = fragment.layout
    bits = ws.element_bits(fragment.kind.element)
    row, column = thread_origin(low, layout, ROW), thread_origin(low, layout, COLUMN)
    accesses = layout.accesses(UNIT_BYTES * 8 // bits)
    kind = ir.MemRefType(tensor.type)
    is_open = kind.is_dynamic_dim(dims[-1]) or kind.shape[dims[-1]] % fragment.kind.shape[1] != 0
    for by, several in groupby(accesses, key=lambda access: access.row):
        point = list(coords)
        with when(_move_to_row(low, tensor, point, dims[:-1], shifted(row, by))):
            point[dims[-1]] = INT.add(point[dims[-1]], shifted(column, 0))
            start = element_pointer(low, tensor, point)
            left = INT.sub(low.extent(tensor, dims[-1]), point[dims[-1]]) if is_open else None
            for access in several:
                with nullcontext() if left is None else when(compare("sgt", left, access.column)):
                    pointer = pointer_after(start, access.column, fragment.kind.element)
                    width = access.count * bits // 8
                    llvm.StoreOp(stored_value(fragment, access), pointer, alignment=width)


def pointer_after(start: Value, elements: int, element: Any) -> Value:
    """The pointer `elements` elements after `start`."""
    by = ir.DenseI32ArrayAttr.get([elements])
    return llvm.GEPOp(start.type, start, [], by, cell_type(element), 0).result


def load_global(
    low: Lowering,
    kind: ws.FragmentType,
    layout: Layout,
    tensor: Value,
    coords: Sequence[Value],
    dims: Sequence[int],
) -> Fragment:
    """Reads a fragment from a tensor, at most 16 bytes at a time; elements outside are 0.

    Args:
      low, tensor, coords: as in `store_global`.
      kind, layout: type and layout of the fragment.
      dims: the dimensions along which rows and, for rank 2, columns run.
    """
    bits, axes = ws.element_bits(kind.element), layout.axes
    dim_of = dict(zip(axes, dims, strict=True))

    def loaded() -> Iterator[tuple[Access, Sequence[Value]]]:
        accesses = layout.accesses(UNIT_BYTES * 8 // bits)
        for by, several in groupby(accesses, key=lambda access: access.row):
            point = list(coords)
            for axis, dim in dim_of.items():
                start = shifted(thread_origin(low, layout, axis), by if axis == ROW else 0)
                point[dim] = INT.add(point[dim], start)
            begin = element_pointer(low, tensor, point)
            limits = [INT.sub(low.extent(tensor, dim), point[dim]) for dim in dim_of.values()]
            for access in several:
                beyond = [0 if axis == ROW else access.column for axis in dim_of]
                checks = [compare("sgt", left, by) for left, by in zip(limits, beyond, strict=True)]
                yield access, load_where(functools.reduce(INT.both, checks), kind, access, begin)

    return from_accesses(kind, layout, loaded())


def load_where(
    condition: Value, kind: ws.FragmentType, access: Access, begin: Value
) -> list[Value]:
    """Loads the registers (or elements) of an access at `begin`; zeros unless `condition` holds."""
    bits, count, element = ws.element_bits(kind.element), access.count, cell_type(kind.element)
    if is_packed(kind) and count * bits >= WORD_BITS:
        element, count = i32(), count * bits // WORD_BITS
    shape = ir.VectorType.get([count], element)
    pointer = pointer_after(begin, access.column, kind.element)
    branch = scf.IfOp(condition, [shape], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        scf.YieldOp([llvm.LoadOp(shape, pointer, alignment=access.count * bits // 8)])
    with ir.InsertionPoint(branch.else_block):
        scf.YieldOp([llvm.ZeroOp(shape).res])
    some = branch.results_[0]
    return [vector.ExtractOp(some, [], [i]).result for i in range(count)]


def _store_values(
    low: Lowering, fragment: Fragment, tensor: Value, coords: Sequence[Value], dims: Sequence[int]
) -> None:
    """Stores one value per row, by the first of the threads that hold copies."""
    layout = fragment.layout
    (axis,) = layout.axes
    origin, writer = thread_origin(low, layout, axis), is_writer(low, layout)
    for access in layout.accesses():
        point = list(coords)
        by = access.row if axis == ROW else access.column
        exists = _move_to_row(low, tensor, point, dims, shifted(origin, by))
        if writer is not None:
            exists = arith.AndIOp(exists, writer).result
        with when(exists):
            llvm.StoreOp(stored_value(fragment, access), element_pointer(low, tensor, point))


def _move_to_row(
    low: Lowering, tensor: Value, coords: list[Value], row_dims: Sequence[int], row: Value
) -> Value:
    """Adds a row to the coordinates; returns i1: whether the tensor has it."""
    outer = row_dims[0]
    if len(row_dims) > 1:
        inner = low.extent(tensor, row_dims[1])
        coords[row_dims[1]] = INT.add(coords[row_dims[1]], arith.RemUIOp(row, inner).result)
        row = arith.DivUIOp(row, inner).result
    coords[outer] = INT.add(coords[outer], row)
    return compare("slt", coords[outer], low.extent(tensor, outer))
