"""Fragments to and from shared memory: swizzled tiles [rows, columns] and plain ones [rows]."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm, vector
from attn_mlir.dialect.scalars import INT, constant, i32, when
from attn_mlir.dialect.targets.features import Feature

from ..layouts.fragments import COLUMN, ROW, WORD_BITS, Access, Layout
from ..layouts.matrices import SPLIT, Matrices, matrices_of
from ..layouts.shared import ATOM_ROWS, SWIZZLE_BYTES, UNIT_BYTES, line_elements, unit_elements
from ..state.handles import Fragment, TileRef
from ..state.lowering import Lowering, cell_type
from .values import from_accesses, is_packed, is_writer, own_place, piece

Value = Any

_SHAPE = "#nvvm.ld_st_matrix_shape<m = 8, n = 8>"
_CELL = "#nvvm.ld_st_matrix_elt_type<b16>"


def load_shared(low: Lowering, tile: TileRef, kind: ws.FragmentType, layout: Layout) -> Fragment:
    """Loads a shared tile in any layout: by `ldmatrix` if it can, else up to 16 bytes at a time."""
    bits = ws.element_bits(kind.element)
    if len(kind.shape) == 2:
        matrices = matrices_of(layout, bits, tile.first_column)
        if matrices is not None:
            return from_accesses(kind, layout, _matrices(low, tile, layout, matrices))
    pointer, most = _places(low, tile, layout)

    def loaded() -> Iterator[tuple[Access, Sequence[Value]]]:
        for access in layout.accesses(most):
            element, count = cell_type(kind.element), access.count
            if is_packed(kind) and count * bits >= WORD_BITS:
                element, count = i32(), count * bits // WORD_BITS
            place = pointer(access)
            if count == 1:
                yield access, [llvm.LoadOp(element, place).result]
                continue
            shape = ir.VectorType.get([count], element)
            unit = llvm.LoadOp(shape, place, alignment=access.count * bits // 8).result
            yield access, [vector.ExtractOp(unit, [], [i]).result for i in range(count)]

    return from_accesses(kind, layout, loaded())


def _matrices(
    low: Lowering, tile: TileRef, layout: Layout, matrices: Matrices
) -> Iterator[tuple[Access, Sequence[Value]]]:
    """Loads a swizzled tile by `ldmatrix`; yields an access for each register."""
    unit = unit_elements(ws.element_bits(tile.kind.element))
    is_apart = Feature.PACKED_F32 in low.target.features
    pointer = _swizzled_places(low, tile, matrices.addresses, is_apart=is_apart)
    count = len(matrices.steps)
    major = "col" if matrices.is_transposed else "row"
    several = ir.Type.parse(f"!llvm.struct<({', '.join(['i32'] * count)})>")
    for access in matrices.addresses.accesses(unit):
        assert access.count == unit
        loaded = nvvm.LdMatrixOp(
            pointer(access),
            count,
            ir.Attribute.parse(f"#nvvm.mma_layout<{major}>"),
            ir.Attribute.parse(_SHAPE),
            ir.Attribute.parse(_CELL),
            results=[several if count > 1 else i32()],
        ).res
        registers = (
            [loaded]
            if count == 1
            else [
                llvm.ExtractValueOp(i32(), loaded, ir.DenseI64ArrayAttr.get([number])).result
                for number in range(count)
            ]
        )
        places = list(matrices.steps)
        if matrices.is_split:
            registers, places = _split(registers, places)
        for register, place in zip(registers, places, strict=True):
            yield _word(tile, layout, access, place), [register]


def _word(tile: TileRef, layout: Layout, access: Access, step: tuple[int, int]) -> Access:
    """What a register of a layout holds of a matrix, by rows and columns from an access to it."""
    row, column = access.row + step[0], access.column + step[1]
    ((_, strip, first),) = layout.holders(row, column)
    return Access(strip, first, WORD_BITS // ws.element_bits(tile.kind.element), row, column)


def _split(
    registers: list[Value], places: list[tuple[int, int]]
) -> tuple[list[Value], list[tuple[int, int]]]:
    """Registers for single columns, made from registers with two columns each, and their places."""
    found: list[Value] = []
    at: list[tuple[int, int]] = []
    for first in range(0, len(registers), 2):
        row, column = places[first]
        for number, selector in enumerate(SPLIT):
            pair = (*registers[first : first + 2], constant(selector))
            name = ir.StringAttr.get("llvm.nvvm.prmt")
            found.append(llvm.CallIntrinsicOp(i32(), name, list(pair), [], []).results_)
            at.append((row, column + number))
    return found, at


def store_shared(low: Lowering, tile: TileRef, fragment: Fragment) -> None:
    """Writes a fragment in any layout to a shared tile: by `stmatrix` if it can, else in units of
    up to 16 bytes."""
    bits = ws.element_bits(fragment.kind.element)
    if len(fragment.kind.shape) == 2 and not fragment.layout.copies():
        matrices = matrices_of(fragment.layout, bits, tile.first_column)
        if matrices is not None and not matrices.is_split:
            _store_matrices(low, tile, fragment, matrices)
            return
    pointer, most = _places(low, tile, fragment.layout)
    writer = is_writer(low, fragment.layout)
    with nullcontext() if writer is None else when(writer):
        for access in fragment.layout.accesses(most):
            value = piece(fragment, access)
            place = pointer(access)
            if access.count == 1:
                llvm.StoreOp(value, place)
            else:
                llvm.StoreOp(value, place, alignment=access.count * bits // 8)


def _store_matrices(low: Lowering, tile: TileRef, fragment: Fragment, matrices: Matrices) -> None:
    """Writes a swizzled tile by `stmatrix`."""
    pointer, unit = _places(low, tile, matrices.addresses)
    major = "col" if matrices.is_transposed else "row"
    word = ir.VectorType.get([1], i32())
    for access in matrices.addresses.accesses(unit):
        words = [
            vector.BitCastOp(
                word, piece(fragment, _word(tile, fragment.layout, access, step))
            ).result
            for step in matrices.steps
        ]
        nvvm.StMatrixOp(
            pointer(access),
            [vector.ExtractOp(each, [], [0]).result for each in words],
            ir.Attribute.parse(f"#nvvm.mma_layout<{major}>"),
            ir.Attribute.parse(_SHAPE),
            ir.Attribute.parse(_CELL),
        )


def _places(low: Lowering, tile: TileRef, layout: Layout) -> tuple[Callable[[Access], Value], int]:
    """A function from an access of this thread to its pointer,
    and the most elements of an access.
    """
    if len(tile.kind.shape) == 1:
        return _array_places(low, tile, layout), 1
    return _swizzled_places(low, tile, layout), unit_elements(ws.element_bits(tile.kind.element))


def _array_places(low: Lowering, tile: TileRef, layout: Layout) -> Callable[[Access], Value]:
    """Pointers into a plain array."""
    width = ws.element_bits(tile.kind.element) // 8
    (axis,) = layout.axes
    own = own_place(low, layout, axis)
    base = tile.address if own is None else INT.add(tile.address, INT.mul(own, width))

    def pointer(access: Access) -> Value:
        by = (access.row if axis == ROW else access.column) * width
        return low.shared_pointer(INT.add(base, by) if by else base)

    return pointer


def _swizzled_places(
    low: Lowering, tile: TileRef, layout: Layout, *, is_apart: bool = False
) -> Callable[[Access], Value]:
    """Pointers into a swizzled tile; see `shared.swizzled_offset`.

    A thread's number and the numbers of its elements contribute different bits to row and column,
    so the offset in a line is the exclusive or of their contributions. If the
    threads' columns span more than a line, the higher bits of a column choose the chunk.

    Args:
      is_apart: whether lines and chunks, which are constants, are added to a pointer and so by the
        instruction itself: up to 8 pointers stay over a loop and not one for each access. A thread
          whose
        f32 lie in pairs has no registers for more (`mha-streaming` in parts at head size 256, ptxas
        13.5).
    """
    rows = tile.pitch
    bits = ws.element_bits(tile.kind.element)
    row, column = (own_place(low, layout, axis) for axis in (ROW, COLUMN))
    line, flip = tile.address, None
    if row is not None:
        line = INT.add(line, INT.mul(tile.line_at(row), SWIZZLE_BYTES))
        flip = INT.mul(arith.AndIOp(row, constant(ATOM_ROWS - 1)).result, UNIT_BYTES)
    if column is not None:
        per_line = line_elements(bits)
        if any(digit.count * digit.step > per_line for _, digit in layout.moves(COLUMN)):
            number = arith.ShRUIOp(column, constant(per_line.bit_length() - 1)).result
            line = INT.add(line, INT.mul(number, rows * SWIZZLE_BYTES))
            column = arith.AndIOp(column, constant(per_line - 1)).result
        own = INT.mul(column, bits // 8)
        flip = own if flip is None else arith.XOrIOp(own, flip).result

    def pointer(access: Access) -> Value:
        chunk, inner = divmod(tile.first_column + access.column, line_elements(bits))
        place = (inner * bits // 8) ^ (access.row % ATOM_ROWS * UNIT_BYTES)
        inside = constant(place) if flip is None else arith.XOrIOp(constant(place), flip).result
        start = (chunk * rows + tile.line(access.row)) * SWIZZLE_BYTES
        if is_apart:
            return low.shared_pointer(INT.add(line, inside), start)
        return low.shared_pointer(INT.add(INT.add(line, start), inside))

    return pointer
