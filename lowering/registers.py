"""Traffic between tiles and registers: one thread holds one row of every fragment.

The layout is that of `tcgen05.ld.32x32b`: thread t of warp w holds row 32 (w mod 4) + t. Shared
tiles use the same assignment, so that no data crosses threads.
"""

from collections.abc import Iterator
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm, vector
from attn_mlir.dialect.scalars import INT, compare, constant, i32, when

from .context import CHUNK, Fragment, Lowering, TileRef, element_pointer, lowers
from .inline_ptx import wait_tensor_loads
from .layouts import (
    ATOM_ROWS,
    SWIZZLE_BYTES,
    UNIT_BYTES,
    line_elements,
    tensor_columns,
    unit_elements,
)
from .rings import wait_tensor_stores

Value = Any

WORD_BITS = 32  # of a register, and of a tensor-memory cell


@lowers(ws.ViewOp)
def _view(low: Lowering, op: ws.ViewOp) -> None:
    low[op.view] = TileRef(ws.TileType(op.view.type), low.tile(op.source).start())


@lowers(ws.ColumnsOp)
def _columns(low: Lowering, op: ws.ColumnsOp) -> None:
    source = low.tile(op.source)
    kind = ws.TileType(op.part.type)
    low[op.part] = TileRef(kind, source.address, source.first_column + op.first.value)


def _shape_attr() -> Any:
    return ir.Attribute.parse("#nvvm.tcgen05_ldst_shape<shape_32x32b>")


def _tensor_pointer(low: Lowering, tile: TileRef, column: int) -> Value:
    """Address of this warp's lanes of a tile, `column` elements in."""
    bits = ws.element_bits(tile.kind.element)
    offset = tensor_columns(tile.first_column + column, bits)
    address = INT.add(INT.add(tile.address, low.active.lane_base), offset)
    return llvm.IntToPtrOp(ir.Type.parse("!llvm.ptr<6>"), address).result


def _chunks(columns: int) -> list[tuple[int, int]]:
    """First column and width of each register vector of a row."""
    return [(c, min(CHUNK, columns - c)) for c in range(0, columns, CHUNK)]


@lowers(ws.LoadOp)
def _load(low: Lowering, op: ws.LoadOp) -> None:
    tile = low.tile(op.source)
    kind = ws.FragmentType(op.fragment.type)
    if tile.kind.space == "tensor":
        if any(_may_overlap(op.source, stored) for stored in low.active.stored):
            wait_tensor_stores(low)
        parts = _load_tensor(low, tile)
    elif len(tile.kind.shape) == 2:
        parts = _load_swizzled(low, tile)
    else:
        parts = [llvm.LoadOp(kind.element, _row_pointer(low, tile)).result]
    low[op.fragment] = Fragment(kind, tuple(parts))


def _extent(tile: Value) -> tuple[Value, int, int]:
    """The slot or buffer tile that a tensor-memory tile lies in, and its cells there: begin, end."""
    kind = ws.TileType(tile.type)
    bits = ws.element_bits(kind.element)
    begin, owner = 0, tile.owner
    if isinstance(owner, ws.ColumnsOp):
        tile, begin, _ = _extent(owner.source)
        begin += tensor_columns(owner.first.value, bits)
    elif isinstance(owner, ws.ViewOp):
        tile, begin, _ = _extent(owner.source)
    return tile, begin, begin + tensor_columns(kind.shape[1], bits)


def _may_overlap(a: Value, b: Value) -> bool:
    """Whether two tensor-memory tiles may have cells in common; rings and buffers have none."""
    (root_a, begin_a, end_a), (root_b, begin_b, end_b) = _extent(a), _extent(b)
    if root_a == root_b:
        return begin_a < end_b and begin_b < end_a
    return root_a.owner.operation.operands[0] == root_b.owner.operation.operands[0]


def _load_tensor(low: Lowering, tile: TileRef) -> list[Value]:
    """A vector per chunk of columns; those of narrow elements stay packed in i32."""
    bits = ws.element_bits(tile.kind.element)
    chunks = [(c, tensor_columns(width, bits)) for c, width in _chunks(tile.kind.shape[1])]
    registers: list[Value] = []
    for column, words in chunks:
        pointer = _tensor_pointer(low, tile, column)
        loaded = nvvm.Tcgen05LdOp(ir.VectorType.get([words], i32()), _shape_attr(), pointer).result
        registers += [vector.ExtractOp(loaded, [], [i]).result for i in range(words)]
    registers = wait_tensor_loads(registers)
    parts: list[Value] = []
    for _, words in chunks:
        raw = ir.VectorType.get([words], i32())
        whole = vector.FromElementsOp(raw, registers[:words]).result
        del registers[:words]
        kind = ir.VectorType.get([words], tile.kind.element) if bits == WORD_BITS else raw
        parts.append(vector.BitCastOp(kind, whole).result)
    return parts


@lowers(ws.StoreOp)
def _store(low: Lowering, op: ws.StoreOp) -> None:
    tile = low.tile(op.target)
    fragment: Fragment = low[op.fragment]
    if tile.kind.space == "tensor":
        _store_tensor(low, tile, fragment)
        low.active.stored.append(op.target)
    elif len(tile.kind.shape) == 1:
        llvm.StoreOp(fragment.parts[0], _row_pointer(low, tile))
    else:
        _store_swizzled(low, tile, fragment)


def _store_tensor(low: Lowering, tile: TileRef, fragment: Fragment) -> None:
    for part, (column, _) in zip(fragment.parts, _chunks(tile.kind.shape[1]), strict=True):
        raw = part
        if part.type.element_type != i32():
            raw = vector.BitCastOp(ir.VectorType.get(part.type.shape, i32()), part).result
        nvvm.Tcgen05StOp(_shape_attr(), _tensor_pointer(low, tile, column), raw)


def _row_pointer(low: Lowering, tile: TileRef) -> Value:
    """Shared pointer to this thread's element of a row vector."""
    width = ws.element_bits(tile.kind.element) // 8
    offset = INT.add(tile.address, INT.mul(low.active.row, width))
    return low.shared_pointer(offset)


def _units(low: Lowering, tile: TileRef, column: int, width: int) -> Iterator[Value]:
    """Pointers to the 16-byte units of this thread's row; see `layouts.swizzled_offset`."""
    rows = tile.kind.shape[0]
    bits = ws.element_bits(tile.kind.element)
    line = INT.add(tile.address, INT.mul(low.active.row, SWIZZLE_BYTES))
    flip = INT.mul(arith.AndIOp(low.active.row, constant(ATOM_ROWS - 1)).result, UNIT_BYTES)
    for first in range(0, width, unit_elements(bits)):
        chunk, inner = divmod(tile.first_column + column + first, line_elements(bits))
        unit = arith.XOrIOp(constant(inner * bits // 8), flip).result
        yield low.shared_pointer(INT.add(INT.add(line, chunk * rows * SWIZZLE_BYTES), unit))


def _load_swizzled(low: Lowering, tile: TileRef) -> list[Value]:
    """A vector per chunk of columns, of 32-bit elements."""
    parts: list[Value] = []
    lanes = unit_elements(WORD_BITS)
    unit_type = ir.VectorType.get([lanes], tile.kind.element)
    for column, width in _chunks(tile.kind.shape[1]):
        elements: list[Value] = []
        for pointer in _units(low, tile, column, width):
            unit = llvm.LoadOp(unit_type, pointer, alignment=UNIT_BYTES).result
            elements += [vector.ExtractOp(unit, [], [i]).result for i in range(lanes)]
        kind = ir.VectorType.get([width], tile.kind.element)
        parts.append(vector.FromElementsOp(kind, elements).result)
    return parts


def _store_swizzled(low: Lowering, tile: TileRef, fragment: Fragment) -> None:
    """A row's elements as 16-byte units."""
    for part, (column, width) in zip(fragment.parts, _chunks(tile.kind.shape[1]), strict=True):
        lanes = UNIT_BYTES * 8 // ws.element_bits(part.type.element_type)
        unit_type = ir.VectorType.get([lanes], part.type.element_type)
        for number, pointer in enumerate(_units(low, tile, column, width)):
            begin = number * lanes
            value = vector.ExtractStridedSliceOp(unit_type, part, [begin], [lanes], [1]).result
            llvm.StoreOp(value, pointer, alignment=UNIT_BYTES)


@lowers(ws.StoreGlobalOp)
def _store_global(low: Lowering, op: ws.StoreGlobalOp) -> None:
    fragment: Fragment = low[op.fragment]
    is_rows = len(fragment.kind.shape) == 1
    coords = [low[value] for value in op.coords]
    dims = list[int](op.dims)
    row_dims = dims if is_rows else dims[:-1]
    inside = _move_to_row(low, op.target, coords, row_dims)
    with when(inside):
        if is_rows:
            llvm.StoreOp(fragment.parts[0], element_pointer(low, op.target, coords))
        else:
            _store_row(low, op.target, coords, dims[-1], fragment)


def _move_to_row(low: Lowering, tensor: Value, coords: list[Value], row_dims: list[int]) -> Value:
    """Moves the coordinates to this thread's row; returns whether that is inside the tensor."""
    outer, row = row_dims[0], low.active.row
    if len(row_dims) > 1:
        inner = low.extent(tensor, row_dims[1])
        coords[row_dims[1]] = INT.add(coords[row_dims[1]], arith.RemUIOp(row, inner).result)
        row = arith.DivUIOp(row, inner).result
    coords[outer] = INT.add(coords[outer], row)
    return compare("slt", coords[outer], low.extent(tensor, outer))


def _store_row(
    low: Lowering, tensor: Value, coords: list[Value], column_dim: int, fragment: Fragment
) -> None:
    """Writes the columns that this thread holds, 16 bytes at a time."""
    width = ws.element_bits(fragment.kind.element)
    column = coords[column_dim]
    for part in fragment.parts:
        lanes = UNIT_BYTES * 8 // ws.element_bits(part.type.element_type)
        kind = ir.VectorType.get([lanes], part.type.element_type)
        for first in range(0, part.type.shape[0], lanes):
            value = vector.ExtractStridedSliceOp(kind, part, [first], [lanes], [1]).result
            coords[column_dim] = column
            llvm.StoreOp(value, element_pointer(low, tensor, coords), alignment=UNIT_BYTES)
            column = INT.add(column, UNIT_BYTES * 8 // width)
