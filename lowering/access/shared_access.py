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
from .values import from_accesses, is_packed, is_writer, stored_value, thread_origin

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
    pointer, most = _pointers(low, tile, layout)

    def loaded() -> Iterator[tuple[Access, Sequence[Value]]]:
        for access in layout.accesses(most):
            element, count = cell_type(kind.element), access.count
            if is_packed(kind) and count * bits >= WORD_BITS:
                element, count = i32(), count * bits // WORD_BITS
            address = pointer(access)
            if count == 1:
                yield access, [llvm.LoadOp(element, address).result]
                continue
            shape = ir.VectorType.get([count], element)
            unit = llvm.LoadOp(shape, address, alignment=access.count * bits // 8).result
            yield access, [vector.ExtractOp(unit, [], [i]).result for i in range(count)]

    return from_accesses(kind, layout, loaded())


def _matrices(
    low: Lowering, tile: TileRef, layout: Layout, matrices: Matrices
) -> Iterator[tuple[Access, Sequence[Value]]]:
    """Loads a swizzled tile by `ldmatrix`; yields an access for each register."""
    unit = unit_elements(ws.element_bits(tile.kind.element))
    adds_constants = Feature.PACKED_F32 in low.target.features
    pointer = _swizzled_pointers(low, tile, matrices.addresses, adds_constants=adds_constants)
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
        steps = list(matrices.steps)
        if matrices.is_split:
            registers, steps = _split(registers, steps)
        for register, step in zip(registers, steps, strict=True):
            yield _word(tile, layout, access, step), [register]


def _word(tile: TileRef, layout: Layout, access: Access, step: tuple[int, int]) -> Access:
    """The access of a layout's register to a matrix, `step` rows and columns from an access."""
    row, column = access.row + step[0], access.column + step[1]
    ((_, strip, first),) = layout.holders(row, column)
    return Access(strip, first, WORD_BITS // ws.element_bits(tile.kind.element), row, column)


def _split(
    registers: list[Value], steps: list[tuple[int, int]]
) -> tuple[list[Value], list[tuple[int, int]]]:
    """Registers of single columns, permuted from registers of two columns each, and their steps."""
    words: list[Value] = []
    word_steps: list[tuple[int, int]] = []
    for first in range(0, len(registers), 2):
        row, column = steps[first]
        for number, selector in enumerate(SPLIT):
            pair = (*registers[first : first + 2], constant(selector))
            name = ir.StringAttr.get("llvm.nvvm.prmt")
            words.append(llvm.CallIntrinsicOp(i32(), name, list(pair), [], []).results_)
            word_steps.append((row, column + number))
    return words, word_steps


def store_shared(low: Lowering, tile: TileRef, fragment: Fragment) -> None:
    """Stores a fragment to a shared tile: by `stmatrix` or up to 16 bytes at a time."""
    bits = ws.element_bits(fragment.kind.element)
    if len(fragment.kind.shape) == 2 and not fragment.layout.copies():
        matrices = matrices_of(fragment.layout, bits, tile.first_column)
        if matrices is not None and not matrices.is_split:
            _store_matrices(low, tile, fragment, matrices)
            return
    pointer, most = _pointers(low, tile, fragment.layout)
    writer = is_writer(low, fragment.layout)
    with nullcontext() if writer is None else when(writer):
        for access in fragment.layout.accesses(most):
            value = stored_value(fragment, access)
            address = pointer(access)
            if access.count == 1:
                llvm.StoreOp(value, address)
            else:
                llvm.StoreOp(value, address, alignment=access.count * bits // 8)


def _store_matrices(low: Lowering, tile: TileRef, fragment: Fragment, matrices: Matrices) -> None:
    """Writes a swizzled tile by `stmatrix`."""
    pointer, unit = _pointers(low, tile, matrices.addresses)
    major = "col" if matrices.is_transposed else "row"
    word = ir.VectorType.get([1], i32())
    for access in matrices.addresses.accesses(unit):
        words = [
            vector.BitCastOp(
                word, stored_value(fragment, _word(tile, fragment.layout, access, step))
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


def _pointers(
    low: Lowering, tile: TileRef, layout: Layout
) -> tuple[Callable[[Access], Value], int]:
    """A function from an access of this thread to its pointer, and an access's most elements."""
    if len(tile.kind.shape) == 1:
        return _array_pointers(low, tile, layout), _array_unit(tile, layout)
    return _swizzled_pointers(low, tile, layout), unit_elements(ws.element_bits(tile.kind.element))


def _array_unit(tile: TileRef, layout: Layout) -> int:
    """Elements of an access to a plain array: 16 bytes where every thread has such units alone."""
    bits = ws.element_bits(tile.kind.element)
    unit = unit_elements(bits)
    is_whole = all(access.count == unit for access in layout.accesses(unit))
    return unit if bits == WORD_BITS and is_whole else 1


def _array_pointers(low: Lowering, tile: TileRef, layout: Layout) -> Callable[[Access], Value]:
    """Pointers into a plain array."""
    width = ws.element_bits(tile.kind.element) // 8
    (axis,) = layout.axes
    origin = thread_origin(low, layout, axis)
    base = tile.address if origin is None else INT.add(tile.address, INT.mul(origin, width))

    def pointer(access: Access) -> Value:
        by = (access.row if axis == ROW else access.column) * width
        return low.shared_pointer(INT.add(base, by) if by else base)

    return pointer


def _swizzled_pointers(
    low: Lowering, tile: TileRef, layout: Layout, *, adds_constants: bool = False
) -> Callable[[Access], Value]:
    """Pointers into a swizzled tile; see `shared.swizzled_offset`.

    A thread's index and its elements' indices set different bits of row and column, so the offset
    in a line is the XOR of both. If the threads' columns span more than a line, the higher bits of
    a column select the chunk.

    Args:
      adds_constants: whether the constant offsets of lines and chunks fold into the instruction's
        address, so that up to 8 pointers stay live over a loop and not one for each access. Threads
        with f32 in pairs have no registers for more (`mha-streaming` with splits at head size 256,
        ptxas 13.5).
    """
    rows = tile.pitch
    bits = ws.element_bits(tile.kind.element)
    row, column = (thread_origin(low, layout, axis) for axis in (ROW, COLUMN))
    line, flip = tile.address, None
    if row is not None:
        line = INT.add(line, INT.mul(tile.line_at(row), SWIZZLE_BYTES))
        flip = INT.mul(arith.AndIOp(row, constant(ATOM_ROWS - 1)).result, UNIT_BYTES)
    if column is not None:
        per_line = line_elements(bits)
        if any(digit.count * digit.step > per_line for _, digit in layout.thread_digits(COLUMN)):
            number = arith.ShRUIOp(column, constant(per_line.bit_length() - 1)).result
            line = INT.add(line, INT.mul(number, rows * SWIZZLE_BYTES))
            column = arith.AndIOp(column, constant(per_line - 1)).result
        byte = INT.mul(column, bits // 8)
        flip = byte if flip is None else arith.XOrIOp(byte, flip).result

    def pointer(access: Access) -> Value:
        chunk, inner = divmod(tile.first_column + access.column, line_elements(bits))
        static = (inner * bits // 8) ^ (access.row % ATOM_ROWS * UNIT_BYTES)
        offset = constant(static) if flip is None else arith.XOrIOp(constant(static), flip).result
        start = (chunk * rows + tile.line(access.row)) * SWIZZLE_BYTES
        if adds_constants:
            return low.shared_pointer(INT.add(line, offset), start)
        return low.shared_pointer(INT.add(INT.add(line, start), offset))

    return pointer
