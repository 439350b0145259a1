"""`ws.product` and `ws.settle` as `wgmma`: products of a warpgroup into its registers.

A product is one group of instructions of 32 bytes of K each, in a single inline-assembly text:
fence, the instructions, commit. Until its wait no accumulator register may be accessed, so both
texts have all of them as operands that they redefine.
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS

from ..access.matrix_descriptors import ADDRESS_UNIT_BITS, low_word
from ..access.values import strip_vectors, words_of_strips
from ..layouts.fragments import accumulator, operand_a
from ..layouts.inference import Constraints, constrains
from ..state.handles import Fragment
from ..state.lowering import Lowering, lowers
from .descriptors import ELEMENT_NAMES, a_registers, accumulator_order, warpgroup_operand
from .wgmma import Descriptors, Registers, Wgmma, issue_wgmma, wait_wgmma

Value = Any


@constrains(ws.ProductOp)
def _constrain_product(c: Constraints, op: ws.ProductOp) -> None:
    if isinstance(op.accumulators.type, ws.FragmentType):
        c.fixes(op, op.accumulators, accumulator(WARPGROUP_WARPS))
    if isinstance(op.a.type, ws.FragmentType):
        bits = ws.element_bits(ws.FragmentType(op.a.type).element)
        c.fixes(op, op.a, operand_a(WARPGROUP_WARPS, bits))


@constrains(ws.SettleOp)
def _constrain_settle(c: Constraints, op: ws.SettleOp) -> None:
    c.fixes(op, op.accumulators, accumulator(WARPGROUP_WARPS))


@lowers(ws.ProductOp)
def _product(low: Lowering, op: ws.ProductOp) -> None:
    b = low.tile(op.b)
    element, bits = b.kind.element, ws.element_bits(b.kind.element)
    form = Wgmma(
        columns=ws.PendingType(op.pending.type).fragment.shape[1],
        element=ELEMENT_NAMES[str(element)],
        element_bits=bits,
        a_is_mn_major=op.a_order == "km",
        b_is_mn_major=op.b_layout.value == "kn",
    )
    a = _a_operand(low, op.a, bits, is_mn_major=form.a_is_mn_major)
    b_descriptors = _descriptors(low, op.b, bits, is_mn_major=form.b_is_mn_major)
    fixed = _fixed(op.accumulate)
    accumulate = low[op.accumulate] if fixed is None else fixed
    low[op.pending] = issue_wgmma(
        form, _accumulators(low, op.accumulators), a, b_descriptors, accumulate
    )


def _accumulators(low: Lowering, accumulators: Value) -> list[Value]:
    """The accumulator registers, of a fragment or of a product in flight."""
    if isinstance(accumulators.type, ws.PendingType):
        return low[accumulators]
    strips = words_of_strips(low[accumulators])
    columns = ws.FragmentType(accumulators.type).shape[1]
    return [strips[strip][number] for strip, number in accumulator_order(columns)]


def _fixed(condition: Value) -> bool | None:
    """The value of an i1 that is a constant; else None."""
    owner = condition.owner
    if isinstance(owner, arith.ConstantOp):
        return bool(ir.IntegerAttr(owner.value).value)
    return None


def _a_operand(low: Lowering, a: Value, bits: int, *, is_mn_major: bool) -> Descriptors | Registers:
    """A in shared memory as its descriptors, or in registers, four for each K step."""
    if isinstance(a.type, ws.TileType):
        return _descriptors(low, a, bits, is_mn_major=is_mn_major)
    fragment: Fragment = low[a]
    strips = words_of_strips(fragment)
    steps = a_registers(fragment.kind.shape[1], bits)
    return [[strips[strip][word] for strip, word in step] for step in steps]


def _descriptors(low: Lowering, value: Value, bits: int, *, is_mn_major: bool) -> Descriptors:
    """The descriptors of a shared tile, K step by K step."""
    tile = low.tile(value)
    columns = tile.kind.shape[1]
    operand = warpgroup_operand(tile.pitch, columns, bits, is_mn_major=is_mn_major)
    steps = tuple(step >> ADDRESS_UNIT_BITS for step in operand.step_bytes)
    if is_mn_major:  # of which these may be some rows alone
        steps = steps[: len(steps) * tile.kind.shape[0] // tile.pitch]
    return Descriptors(low_word(low, tile, operand), operand.descriptor >> 32, steps)


@lowers(ws.SettleOp)
def _settle(low: Lowering, op: ws.SettleOp) -> None:
    kind, layout = ws.FragmentType(op.accumulators.type), low.layouts[op.accumulators]
    registers = wait_wgmma(low[op.pending], op.newest.value)
    strips: list[list[Value]] = [[] for _ in layout.strip_offsets]
    for (strip, _), register in zip(accumulator_order(kind.shape[1]), registers, strict=True):
        strips[strip].append(register)
    parts = tuple(part for strip in strips for part in strip_vectors(strip, layout))
    low[op.accumulators] = Fragment(kind, layout, parts)
