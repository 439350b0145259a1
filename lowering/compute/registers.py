"""Loads and stores of fragments from and to tiles, in the layout of the fragment."""

from dataclasses import replace
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import scf
from attn_mlir.dialect.scalars import INT

from ..access.global_access import load_global, store_global
from ..access.inline_ptx import opaque
from ..access.matrix_descriptors import first_line
from ..access.shared_access import load_shared, store_shared
from ..access.tensor_access import load_tensor, store_tensor
from ..access.tensor_memory import access_by_threads, wait_tensor_stores
from ..layouts import tensor_columns
from ..layouts.fragments import WORD_BITS
from ..state.handles import Fragment, TileRef
from ..state.lowering import BYTE_BITS, Lowering, lowers

Value = Any


@lowers(ws.ViewOp)
def _view(low: Lowering, op: ws.ViewOp) -> None:
    source = low.tile(op.source)
    kind = ws.TileType(op.view.type)
    if kind.shape[0] != source.kind.shape[0] and (lines := ws.lines_of(kind)) > 1:
        rows = source.kind.shape[0]
        low[op.view] = TileRef(kind, source.start(), pitch_rows=rows, block_lines=rows * lines)
        return
    start = first_line(source) if kind.space == "shared" else source.start()
    low[op.view] = TileRef(kind, start, pitch_rows=source.pitch_rows)


@lowers(ws.ColumnsOp)
def _columns(low: Lowering, op: ws.ColumnsOp) -> None:
    source = low.tile(op.source)
    kind = ws.TileType(op.part.type)
    first = source.first_column + op.first.value
    low[op.part] = TileRef(kind, source.address, first, source.pitch_rows, source.block_lines)


@lowers(ws.ColumnsAtOp)
def _columns_at(low: Lowering, op: ws.ColumnsAtOp) -> None:
    source = low.tile(op.source)
    kind = ws.TileType(op.part.type)
    if kind.space == "tensor":
        bits = INT.mul(low[op.first], ws.element_bits(kind.element))
        address = INT.add(source.address, INT.floordiv(bits, WORD_BITS))
        low[op.part] = replace(source, kind=kind, address=address)
        return
    bytes_of_column = source.pitch * ws.element_bits(kind.element) // 8
    address = INT.add(source.address, INT.mul(low[op.first], bytes_of_column))
    low[op.part] = replace(source, kind=kind, address=address, pitch_rows=source.pitch)


@lowers(ws.RowsOp)
def _rows(low: Lowering, op: ws.RowsOp) -> None:
    source = low.tile(op.source)
    kind = ws.TileType(op.part.type)
    if len(kind.shape) == 1:
        width = ws.element_bits(kind.element) // BYTE_BITS
        low[op.part] = TileRef(kind, INT.add(source.address, INT.mul(low[op.first], width)))
        return
    lines = source.line_at(low[op.first])
    address = INT.add(source.address, INT.mul(lines, kind.line_bytes))
    low[op.part] = TileRef(kind, address, source.first_column, source.pitch, source.block_lines)


@lowers(ws.LoadOp)
def _load(low: Lowering, op: ws.LoadOp) -> None:
    tile = low.tile(op.source)
    kind, layout = ws.FragmentType(op.fragment.type), low.layouts[op.fragment]
    if tile.kind.space == "shared":
        if _is_loop_invariant(op):
            # the addresses of all its elements would be hoisted out of the loop, and spilled
            tile = replace(tile, address=opaque(tile.address))
        low[op.fragment] = load_shared(low, tile, kind, layout)
        return
    if any(_may_overlap(op.source, stored) for stored in low.active.accesses.stored):
        wait_tensor_stores(low)
    access_by_threads(low)
    low[op.fragment] = load_tensor(low, tile, kind, layout)


def _is_loop_invariant(op: ws.LoadOp) -> bool:
    """Whether every iteration of the innermost enclosing loop reads the same slot."""
    slot = op.source.owner
    while isinstance(slot, ws.PARTS | ws.ViewOp):
        slot = slot.source.owner
    around = op.operation.parent
    while around is not None and not isinstance(around.opview, scf.ForOp):
        around = around.parent
    inner = slot.operation.parent
    while around is not None and inner is not None and inner != around:
        inner = inner.parent
    return around is not None and inner is None


def _extent(tile: Value) -> tuple[Value, int, int]:
    """The slot or buffer that contains a tensor-memory tile, and the tile's columns in it."""
    kind = ws.TileType(tile.type)
    bits = ws.element_bits(kind.element)
    begin, owner = 0, tile.owner
    if isinstance(owner, ws.ColumnsOp):
        tile, begin, _ = _extent(owner.source)
        begin += tensor_columns(owner.first.value, bits)
    elif isinstance(owner, ws.ViewOp):
        tile, begin, _ = _extent(owner.source)
    elif isinstance(owner, ws.ColumnsAtOp):
        return _extent(owner.source)
    return tile, begin, begin + tensor_columns(kind.shape[1], bits)


def _may_overlap(a: Value, b: Value) -> bool:
    """Whether two tensor-memory tiles may overlap; different rings and buffers never do."""
    (root_a, begin_a, end_a), (root_b, begin_b, end_b) = _extent(a), _extent(b)
    if root_a == root_b:
        return begin_a < end_b and begin_b < end_a
    return root_a.owner.operation.operands[0] == root_b.owner.operation.operands[0]


@lowers(ws.StoreOp)
def _store(low: Lowering, op: ws.StoreOp) -> None:
    tile = low.tile(op.target)
    fragment: Fragment = low[op.fragment]
    if tile.kind.space == "shared":
        store_shared(low, tile, fragment)
        return
    access_by_threads(low)
    store_tensor(low, tile, fragment)
    low.active.accesses.stored.append(op.target)


@lowers(ws.StoreGlobalOp)
def _store_global(low: Lowering, op: ws.StoreGlobalOp) -> None:
    coords = [low[value] for value in op.coords]
    store_global(low, low[op.fragment], op.target, coords, list[int](op.dims))


@lowers(ws.LoadGlobalOp)
def _load_global(low: Lowering, op: ws.LoadGlobalOp) -> None:
    kind, layout = ws.FragmentType(op.fragment.type), low.layouts[op.fragment]
    coords = [low[value] for value in op.coords]
    dims = list[int](op.dims)
    low[op.fragment] = load_global(low, kind, layout, op.source, coords, dims)
