"""Shuffles, which broadcast a lane's value to its warp, and votes, which make bitmasks of lanes."""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, nvvm
from attn_mlir.dialect.scalars import compare, constant, i32, select
from attn_mlir.dialect.targets.limits import WARP_THREADS

from ..layouts.fragments import row_per_lane, row_per_thread, row_per_warp
from ..layouts.inference import Constraints, constrains
from ..state.handles import Fragment
from ..state.lowering import FULL_WARP, Lowering, lowers
from .values import shifted, strip_vectors, thread_origin

Value = Any


def from_lane(value: Value, lane: Value) -> Value:
    """The value that lane `lane` holds."""
    kind = ir.Attribute.parse("#nvvm<shfl_kind idx>")
    clamp = constant(WARP_THREADS - 1)
    return nvvm.ShflOp(constant(FULL_WARP), value, lane, clamp, kind, results=[value.type]).res


@constrains(ws.SpreadOp)
def _constrain(c: Constraints, op: ws.SpreadOp) -> None:
    c.fixes(op, op.lanes, row_per_lane(c.warps))


@constrains(ws.BitsOp)
def _constrain_bits(c: Constraints, op: ws.BitsOp) -> None:
    c.fixes(op, op.rows, row_per_thread(c.warps))
    c.fixes(op, op.words, row_per_warp(c.warps))


@lowers(ws.BitsOp)
def _bits(low: Lowering, op: ws.BitsOp) -> None:
    kind = ir.Attribute.parse("#nvvm<vote_sync_kind ballot>")
    everyone = constant(FULL_WARP)
    words = [
        nvvm.VoteSyncOp(everyone, part, kind, results=[i32()]).result for part in low[op.rows].parts
    ]
    low[op.words] = Fragment(ws.FragmentType(op.words.type), low.layouts[op.words], tuple(words))


@lowers(ws.SpreadOp)
def _spread(low: Lowering, op: ws.SpreadOp) -> None:
    kind, layout = ws.FragmentType(op.line.type), low.layouts[op.line]
    lanes: Fragment = low[op.lanes]
    (axis,) = layout.axes
    origin = thread_origin(low, layout, axis)
    if layout.is_single:
        values = [_element(lanes, shifted(origin, offset)) for offset in layout.strip_offsets]
        low[op.line] = Fragment(kind, layout, tuple(values))
        return
    values = [_element(lanes, shifted(origin, offset)) for offset in layout.element_offsets]
    low[op.line] = Fragment(kind, layout, tuple(strip_vectors(values, layout)))


def _element(lanes: Fragment, number: Value) -> Value:
    """Element `number` of a fragment, shuffled from the lane that holds it."""
    lane = arith.AndIOp(number, constant(WARP_THREADS - 1)).result
    first, *parts = lanes.parts
    value = from_lane(first, lane)
    for number_of_part, part in enumerate(parts, 1):
        value = select(
            compare("sge", number, number_of_part * WARP_THREADS), from_lane(part, lane), value
        )
    return value
