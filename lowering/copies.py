"""Copy-engine traffic by `nvgpu`: boxes of tensors into and out of swizzled shared tiles."""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import builtin, ir, nvgpu

from .barriers import index, memref_struct
from .context import Lowering, Slot, TileRef, lowers
from .layouts import copy_box
from .parameters import TensorMap, coordinate_order

Value = Any


def _box_type(low: Lowering, parameter: TensorMap) -> Any:
    """The memref of a box: slow to fast, that is 1, .., chunks, rows, line."""
    tensor = ir.MemRefType(low.kernel.body.blocks[0].arguments[parameter.argument].type)
    inner, rows, chunks = copy_box(parameter.rows, parameter.columns)
    ones = [1] * (tensor.rank - 2)
    space = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 3)
    shape = [*ones, chunks, rows, inner]
    return ir.MemRefType.get(shape, tensor.element_type, memory_space=space)


def _box(low: Lowering, tile: TileRef, parameter: TensorMap) -> Value:
    """A shared tile as the memref that `nvgpu` copies."""
    kind = _box_type(low, parameter)
    struct = memref_struct(low.shared_pointer(tile.address), kind.rank)
    return builtin.UnrealizedConversionCastOp([kind], [struct]).result


def tensor_map_value(low: Lowering, parameter: TensorMap) -> Value:
    """A tensor-map parameter as the descriptor that `nvgpu` copies through."""
    box = _box_type(low, parameter)
    options = "swizzle = swizzle_128b, l2promo = l2promo_128b, oob = zero, interleave = none"
    kind = ir.Type.parse(f"!nvgpu.tensormap.descriptor<tensor = {box}, {options}>")
    pointer = low.arguments[parameter]
    return builtin.UnrealizedConversionCastOp([kind], [pointer]).result


def _coordinates(low: Lowering, coords: Any, dims: Any) -> list[Value]:
    """Start coordinates in the map's order: element in line, row, chunk, then the others."""
    rows, columns = dims
    values = [low[value] for value in coords]
    others = [values[axis] for axis in coordinate_order(len(values), dims)]
    return [index(x) for x in (values[columns], values[rows], 0, *others)]


@lowers(ws.TmaLoadOp)
def _tma_load(low: Lowering, op: ws.TmaLoadOp) -> None:
    slot: Slot = low[op.target]
    parameter = low.signature.tensor_map(op.source, ws.TileType(op.target.type), op.dims)
    nvgpu.TmaAsyncLoadOp(
        _box(low, slot.tile, parameter),
        slot.ring.full.group,
        tensor_map_value(low, parameter),
        _coordinates(low, op.coords, op.dims),
        index(slot.index),
    )


@lowers(ws.TmaStoreOp)
def _tma_store(low: Lowering, op: ws.TmaStoreOp) -> None:
    parameter = low.signature.tensor_map(op.target, ws.TileType(op.source.type), op.dims)
    nvgpu.TmaAsyncStoreOp(
        _box(low, low.tile(op.source), parameter),
        tensor_map_value(low, parameter),
        _coordinates(low, op.coords, op.dims),
    )
