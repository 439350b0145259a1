"""Fragments to global memory."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, llvm
from attn_mlir.dialect.scalars import INT, compare, when

from ..context import Fragment, Lowering, element_pointer
from .fragments import COLUMN, ROW
from .shared import UNIT_BYTES
from .values import is_writer, moved, own_place, piece

Value = Any


def store_global(
    low: Lowering, fragment: Fragment, tensor: Value, coords: Sequence[Value], dims: Sequence[int]
) -> None:
    """Writes a fragment to a tensor, rows outside the tensor left out, 16 bytes at a time at most.

    Args:
      low: the lowering.
      fragment: of rows and columns, or of rows.
      tensor: memref of the kernel.
      coords: i32 per dimension, of the fragment's first element.
      dims: the dimensions that rows and columns run along: one, or two that rows run through, and
        one for columns unless the fragment is of rows.
    """
    if len(fragment.kind.shape) == 1:
        _store_values(low, fragment, tensor, coords, dims)
        return
    layout = fragment.layout
    bits = ws.element_bits(fragment.kind.element)
    row, column = own_place(low, layout, ROW), own_place(low, layout, COLUMN)
    accesses = layout.accesses(UNIT_BYTES * 8 // bits)
    for by, several in groupby(accesses, key=lambda access: access.row):
        place = list(coords)
        with when(_move_to_row(low, tensor, place, dims[:-1], moved(row, by))):
            start = coords[dims[-1]] if column is None else INT.add(coords[dims[-1]], column)
            for access in several:
                place[dims[-1]] = INT.add(start, access.column) if access.column else start
                pointer = element_pointer(low, tensor, place)
                width = access.count * bits // 8
                llvm.StoreOp(piece(fragment, access), pointer, alignment=width)


def _store_values(
    low: Lowering, fragment: Fragment, tensor: Value, coords: Sequence[Value], dims: Sequence[int]
) -> None:
    """Writes one value per row; of the threads with copies the first one does."""
    layout = fragment.layout
    (axis,) = layout.axes
    own, writer = own_place(low, layout, axis), is_writer(low, layout)
    for access in layout.accesses():
        place = list(coords)
        by = access.row if axis == ROW else access.column
        inside = _move_to_row(low, tensor, place, dims, moved(own, by))
        if writer is not None:
            inside = arith.AndIOp(inside, writer).result
        with when(inside):
            llvm.StoreOp(piece(fragment, access), element_pointer(low, tensor, place))


def _move_to_row(
    low: Lowering, tensor: Value, coords: list[Value], row_dims: Sequence[int], row: Value
) -> Value:
    """Moves the coordinates to a row; returns whether that is inside the tensor."""
    outer = row_dims[0]
    if len(row_dims) > 1:
        inner = low.extent(tensor, row_dims[1])
        coords[row_dims[1]] = INT.add(coords[row_dims[1]], arith.RemUIOp(row, inner).result)
        row = arith.DivUIOp(row, inner).result
    coords[outer] = INT.add(coords[outer], row)
    return compare("slt", coords[outer], low.extent(tensor, outer))
