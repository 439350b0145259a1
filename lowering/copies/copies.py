"""TMA copies through `nvgpu`: boxes of tensors from and to swizzled shared tiles."""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, builtin, ir, nvgpu, nvvm
from attn_mlir.dialect.scalars import INT, constant

from ..layouts import SWIZZLES
from ..rings.clusters import (
    as_cluster,
    as_shared,
    counted_at,
    in_cta,
    in_role,
    is_own,
    mask_of,
    only_in,
)
from ..rings.followed import issuing
from ..rings.rings import announce, landing_bytes
from ..state.barriers import index, memref_struct
from ..state.handles import Slot, TileRef
from ..state.lowering import Lowering, lowers
from ..state.tensors import TensorMap, end_of

Value = Any


def _box_type(low: Lowering, parameter: TensorMap) -> Any:
    """The memref type of a box, slowest dimension first."""
    tensor = ir.MemRefType(low.signature.argument_type(parameter.argument))
    space = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 3)
    return ir.MemRefType.get(parameter.box()[::-1], tensor.element_type, memory_space=space)


def box_offset(tile: TileRef, parameter: TensorMap, number: int) -> Value:
    """i32: byte offset of one box of a tile in the kernel's shared memory."""
    first = tile.first_column // parameter.line
    return INT.add(tile.address, (first + number) * tile.pitch * parameter.line_bytes)


def _box(low: Lowering, tile: TileRef, parameter: TensorMap, number: int) -> Value:
    """The memref of one box of a tile, for `nvgpu`."""
    kind = _box_type(low, parameter)
    pointer = low.shared_pointer(box_offset(tile, parameter, number))
    struct = memref_struct(pointer, kind.rank)
    return builtin.UnrealizedConversionCastOp([kind], [struct]).result


def tensor_map_value(low: Lowering, parameter: TensorMap) -> Value:
    """A tensor-map parameter as a descriptor of `nvgpu`."""
    box = _box_type(low, parameter)
    name = SWIZZLES[parameter.line_bytes].lower()
    swizzle = name if name == "none" else f"swizzle_{name}"
    options = f"swizzle = {swizzle}, l2promo = l2promo_128b, oob = zero, interleave = none"
    kind = ir.Type.parse(f"!nvgpu.tensormap.descriptor<tensor = {box}, {options}>")
    pointer = low.arguments[parameter]
    return builtin.UnrealizedConversionCastOp([kind], [pointer]).result


def _coordinates(
    low: Lowering, tensor: Value, coords: Any, parameter: TensorMap, number: int
) -> list[Value]:
    limit = end_of(tensor)
    end = None if limit is None else low[limit]
    return parameter.coordinates([low[value] for value in coords], number, end)


def box_start(
    low: Lowering, tensor: Value, coords: Any, parameter: TensorMap, number: int
) -> list[Value]:
    """Coordinates of a box in the tensor, i32 each, in the map's order."""
    coordinates = _coordinates(low, tensor, coords, parameter, number)
    return [constant(x) if isinstance(x, int) else x for x in coordinates]


@lowers(ws.CopyInOp)
def _copy_in(low: Lowering, op: ws.CopyInOp) -> None:
    with issuing(low):
        _fill(low, op)


def _fill(low: Lowering, op: ws.CopyInOp) -> None:
    slot = low.slot(op.target)
    parameter = low.signature.tensor_map(op)
    announce(low, slot, op)
    if slot.ring.is_crossing or any(ws.crossing(op.receivers)):
        _copy_across(low, op, slot, parameter)
        return
    for number in range(parameter.box_count):
        nvgpu.TmaAsyncLoadOp(
            _box(low, low.tile(op.target), parameter, number),
            slot.ring.full.group,
            tensor_map_value(low, parameter),
            list(map(index, _coordinates(low, op.source, op.coords, parameter, number))),
            index(slot.index),
        )


def _copy_across(low: Lowering, op: ws.CopyInOp, slot: Slot, parameter: TensorMap) -> None:
    """Emits a multicast copy, or one that completes bytes at the other CTA of a pair."""
    receivers, ring = in_role(low, op.receivers), slot.ring
    barrier, options = counted_at(low, ring.full.address(slot.index), receivers, ring.full_at)
    if not is_own(receivers):
        options["multicastMask"] = mask_of(low, receivers)
    tile = low.tile(op.target)
    for number in range(parameter.box_count):
        pointer = low.shared_pointer(box_offset(tile, parameter, number))
        nvvm.CpAsyncBulkTensorGlobalToSharedClusterOp(
            as_cluster(pointer),
            low.arguments[parameter],
            box_start(low, op.source, op.coords, parameter, number),
            barrier,
            [],
            **options,
        )


@lowers(ws.CopyAcrossOp)
def _copy_to_cta(low: Lowering, op: ws.CopyAcrossOp) -> None:
    """Copies a slot as a block of bytes, which has the same offset in every CTA."""
    slot, to = low.slot(op.target), in_role(low, op.to)
    destinations = {rank: receivers[0] for rank, receivers in to.items() if receivers}
    if not destinations:
        return
    with only_in(low, destinations, low.active.op.ranks):
        nvvm.CpAsyncBulkSharedCTAToSharedClusterOp(
            in_cta(low, low.shared_pointer(slot.tile.start()), destinations),
            low.shared_pointer(low.tile(op.source).start()),
            as_shared(in_cta(low, slot.ring.full.address(slot.index), destinations)),
            constant(landing_bytes(op)),
        )


@lowers(ws.CopyOutOp)
def _copy_out(low: Lowering, op: ws.CopyOutOp) -> None:
    parameter = low.signature.tensor_map(op)
    with issuing(low):
        for number in range(parameter.box_count):
            nvgpu.TmaAsyncStoreOp(
                _box(low, low.tile(op.source), parameter, number),
                tensor_map_value(low, parameter),
                list(map(index, _coordinates(low, op.target, op.coords, parameter, number))),
            )


@lowers(ws.ReduceOutOp)
def _reduce_out(low: Lowering, op: ws.ReduceOutOp) -> None:
    parameter = low.signature.tensor_map(op)
    kind = ir.Attribute.parse(f"#nvvm.tma_redux_kind<{op.kind.value}>")
    for number in range(parameter.box_count):
        nvvm.CpAsyncBulkTensorReduceOp(
            low.arguments[parameter],
            low.shared_pointer(box_offset(low.tile(op.source), parameter, number)),
            kind,
            box_start(low, op.target, op.coords, parameter, number),
        )


@lowers(ws.ExpandOp)
def _expand(low: Lowering, op: ws.ExpandOp) -> None:
    """Emits nothing: uses of the view resolve it."""
    low[op.view] = None


@lowers(ws.CollapseOp)
def _collapse(low: Lowering, op: ws.CollapseOp) -> None:
    """Emits nothing, as for `ws.expand`."""
    low[op.view] = None


@lowers(ws.PitchOp)
def _pitch(low: Lowering, op: ws.PitchOp) -> None:
    """Emits the quotient of two strides, which are i64."""
    outer, *inner = (low.arguments[stride] for stride in low.signature.strides(op))
    steps = arith.DivUIOp(outer, inner[0]).result if inner else outer
    low[op.steps] = arith.TruncIOp(ir.IntegerType.get_signless(32), steps).result


@lowers(ws.LimitOp)
def _limit(low: Lowering, op: ws.LimitOp) -> None:
    """Emits nothing, as for `ws.expand`."""
    low[op.view] = None
