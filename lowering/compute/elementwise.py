"""Element-wise regions, fills, broadcasts and reductions over the elements a thread holds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, vector
from attn_mlir.dialect.scalars import (
    INT,
    exp2,
    f32_constant,
    fadd,
    fdiv,
    fmul,
    fsub,
)
from attn_mlir.passes.check_scalars import check_name

from ..access.inline_ptx import opaque, opaque_vector
from ..access.narrow import round_and_pack, upcast_and_pack
from ..access.reductions import folded, reduced
from ..access.values import along_numbers, is_packed, packed, shifted, thread_origin, unpacked
from ..layouts import Layout
from ..state.handles import Fragment
from ..state.lowering import BYTE_BITS, Lowering, load_input, lowers, lowers_named
from .approximations import EXPANSIONS
from .ordered_coordinates import OrderedCoordinates

Value = Any
LN2 = math.log(2.0)
# elements evaluated at a time: a modifier of 100 operations spills 41 KiB at 32, nothing at 4
# (ptxas 13.5)
CHUNK = 4
SHORT_BODY = 4  # most operations per element of a body that is evaluated on whole vectors


@dataclass(frozen=True)
class _Varying:
    """A value of an element-wise region that differs between elements of a strip: vectors."""

    parts: tuple[Value, ...]


@dataclass(frozen=True)
class _PerStrip:
    """A value that is the same for all elements of a strip: one per strip."""

    values: tuple[Value, ...]


def _per_strip(values: Sequence[Value]) -> Any:
    """A value per strip; just the value if there is only one strip."""
    return values[0] if len(values) == 1 else _PerStrip(tuple(values))


def _splat(value: Value, width: int) -> Value:
    return vector.BroadcastOp(ir.VectorType.get([width], value.type), value).result


class _Region:
    """Evaluates the body of a `ws.map`; values that do not depend on the element stay scalar.

    Long bodies are evaluated on `CHUNK` elements at a time, so that intermediate values need
    registers for these elements only and not for a whole strip.

    Attributes:
      turns: the coordinates in order, where elements are evaluated in order; else None.
    """

    def __init__(self, low: Lowering, layout: Layout):
        self.low = low
        self.turns: OrderedCoordinates | None = None
        self.strip_count = len(layout.strip_offsets)
        self.widths = layout.part_widths * self.strip_count
        self.per_strip = len(layout.part_widths)
        self.values: dict[Any, Any] = {}

    def operand(self, value: Value) -> Any:
        """The lowered form of a value of the region, or of one from outside."""
        return self.values[value] if value in self.values else self.low[value]

    def strip_of(self, part: int) -> int:
        """The strip that a part belongs to."""
        return part // self.per_strip

    def varying(self, operations: Sequence[Any]) -> list[Any]:
        """The operations whose results depend on the element, through an argument that does."""
        values = {
            value for value, dependent in self.values.items() if isinstance(dependent, _Varying)
        }
        dependent: list[Any] = []
        for op in operations:
            if any(value in values for value in op.operands):
                dependent.append(op)
                values.update(op.results)
        return dependent

    def is_long(self, operations: Sequence[Any]) -> bool:
        """Whether the body is evaluated on `CHUNK` elements at a time."""
        is_long = self.turns is not None or len(self.varying(operations)) > SHORT_BODY
        return max(self.widths, default=0) > CHUNK and is_long

    def run(self, operations: Sequence[Any]) -> None:
        """Evaluates the scalar operations of the body, in order."""
        varying = self.varying(operations)
        for op in operations:
            if op.name not in _SPECIAL and op.name not in EXPANSIONS:
                check_name(op)
            (result,) = op.results
            if op in varying:
                self.values[result] = _Varying(())
            else:
                self.values[result] = self._in_strips(op)
        is_long = self.is_long(operations)
        for number, width in enumerate(self.widths):
            step = CHUNK if is_long and width % CHUNK == 0 else width
            self._run_part(varying, number, range(0, width, step), step)

    def _run_part(self, varying: Sequence[Any], number: int, starts: range, step: int) -> None:
        """Evaluates the operations `varying` on part `number`, `step` elements at a time."""
        chunks: dict[Value, list[Value]] = {op.results[0]: [] for op in varying}
        turns = self.turns
        for first in starts:
            now: dict[Value, Value] = {}
            if turns is not None:
                now[turns.coordinate] = turns.numbers(number, first, step)
            for op in varying:
                operands = [
                    now[value] if value in now else self._chunk(value, number, first, step)
                    for value in op.operands
                ]
                now[op.results[0]] = self._vector(op, operands, step)
                chunks[op.results[0]].append(now[op.results[0]])
            if turns is not None:
                turns.note(now[varying[-1].results[0]])
        for result, vectors in chunks.items():
            self.values[result] = _Varying((*self.values[result].parts, _concatenated(vectors)))

    def _chunk(self, value: Value, number: int, first: int, step: int) -> Any:
        """`step` elements of a part from `first` on; a scalar is returned as it is."""
        lowered = self.operand(value)
        if isinstance(lowered, _PerStrip):
            return lowered.values[self.strip_of(number)]
        if not isinstance(lowered, _Varying):
            return lowered
        part = lowered.parts[number]
        if part.type.shape[0] == step:
            return part
        kind = ir.VectorType.get([step], part.type.element_type)
        return vector.ExtractStridedSliceOp(kind, part, [first], [step], [1]).result

    def _in_strips(self, op: Any) -> Any:
        """Evaluates an operation once per strip, or once if all strips have the same operands."""
        operands = [self.operand(value) for value in op.operands]
        if not any(isinstance(value, _PerStrip) for value in operands):
            return self._scalar(op, operands)
        several: list[Value] = []
        for strip in range(self.strip_count):
            own = [x.values[strip] if isinstance(x, _PerStrip) else x for x in operands]
            several.append(self._scalar(op, own))
        return _PerStrip(tuple(several))

    def _scalar(self, op: Any, operands: Sequence[Value]) -> Value:
        if op.name in _SPECIAL:
            return _SPECIAL[op.name](self.low, op, operands)
        if op.name in EXPANSIONS:
            return EXPANSIONS[op.name](*operands)
        attributes = dict(op.attributes.items())
        return ir.Operation.create(
            op.name, results=[op.results[0].type], operands=operands, attributes=attributes
        ).result

    def _vector(self, op: Any, operands: Sequence[Value], width: int) -> Value:
        """Evaluates an operation on `width` elements; one by one if it has no vector form."""
        kind = ir.VectorType.get([width], op.results[0].type)
        flags = [isinstance(self.operand(value), _Varying) for value in op.operands]
        pairs = list(zip(operands, flags, strict=True))
        if op.name not in _SPECIAL:
            attributes = dict(op.attributes.items())
            vectors = [x if is_vector else _splat(x, width) for x, is_vector in pairs]
            if op.name in EXPANSIONS:
                return EXPANSIONS[op.name](*vectors)
            return ir.Operation.create(
                op.name, results=[kind], operands=vectors, attributes=attributes
            ).result
        elements: list[Value] = []
        for i in range(width):
            one = [
                vector.ExtractOp(x, [], [i]).result if is_vector else x for x, is_vector in pairs
            ]
            elements.append(_SPECIAL[op.name](self.low, op, one))
        return vector.FromElementsOp(kind, elements).result


def _concatenated(vectors: Sequence[Value]) -> Value:
    """Concatenates vectors of the same width."""
    if len(vectors) == 1:
        return vectors[0]
    width = vectors[0].type.shape[0]
    kind = ir.VectorType.get([width * len(vectors)], vectors[0].type.element_type)
    elements = [vector.ExtractOp(part, [], [i]).result for part in vectors for i in range(width)]
    return vector.FromElementsOp(kind, elements).result


def _log2(low: Lowering, op: Any, operands: Sequence[Value]) -> Value:
    """`lg2.approx`, as the backend has no code for `math.log2`."""
    name = ir.StringAttr.get("llvm.nvvm.lg2.approx.ftz.f")
    return llvm.CallIntrinsicOp(operands[0].type, name, [operands[0]], [], []).results_


def _log(low: Lowering, op: Any, operands: Sequence[Value]) -> Value:
    return fmul(_log2(low, op, operands), f32_constant(LN2))


def _exp(low: Lowering, op: Any, operands: Sequence[Value]) -> Value:
    return exp2(fmul(operands[0], f32_constant(1.0 / LN2)))


def _tanh(low: Lowering, op: Any, operands: Sequence[Value]) -> Value:
    """1 - 2 / (e^2x + 1); `tanh.approx` has errors of 2^-11, which a softcap would multiply."""
    one, two = f32_constant(1.0), f32_constant(2.0)
    power = exp2(fmul(operands[0], f32_constant(2.0 / LN2)))
    return fsub(one, fdiv(two, fadd(power, one)))


def _element(low: Lowering, op: Any, operands: Sequence[Value]) -> Value:
    return load_input(low, op.operands[0], operands[1:])


def _entry(low: Lowering, op: Any, operands: Sequence[Value]) -> Value:
    tile = low.tile(op.operands[0])
    width = ws.element_bits(tile.kind.element) // 8
    address = INT.add(tile.address, INT.mul(operands[1], width))
    return llvm.LoadOp(tile.kind.element, low.shared_pointer(address)).result


def _extent(low: Lowering, op: Any, operands: Sequence[Value]) -> Value:
    return low.extent(op.operands[0], ir.IntegerAttr(op.attributes["dim"]).value)


_SPECIAL: "dict[str, Callable[[Lowering, Any, Sequence[Value]], Value]]" = {
    "math.log2": _log2,
    "math.log": _log,
    "math.exp": _exp,
    "math.tanh": _tanh,
    ws.ElementOp.OPERATION_NAME: _element,
    ws.EntryOp.OPERATION_NAME: _entry,
    ws.ExtentOp.OPERATION_NAME: _extent,
}


def _lower_special(low: Lowering, op: Any) -> None:
    """One of `_SPECIAL` outside an element-wise region."""
    operands = [low[value] for value in op.operation.operands]
    low[op.operation.results[0]] = _SPECIAL[op.operation.name](low, op.operation, operands)


def _lower_expanded(low: Lowering, op: Any) -> None:
    """One of `EXPANSIONS` outside an element-wise region."""
    operands = [low[value] for value in op.operation.operands]
    low[op.operation.results[0]] = EXPANSIONS[op.operation.name](*operands)


for _name in _SPECIAL:
    lowers_named(_name, _lower_special)
for _name in EXPANSIONS:
    lowers_named(_name, _lower_expanded)


@lowers(ws.MapOp)
def _map(low: Lowering, op: ws.MapOp) -> None:
    kind, layout = ws.FragmentType(op.fragment.type), low.layouts[op.fragment]
    block = op.body.blocks[0]
    if _is_upcast(op):
        source = ws.FragmentType(op.inputs[0].type).element
        parts = [upcast_and_pack(part, source, kind.element) for part in low[op.inputs[0]].parts]
        low[op.fragment] = Fragment(kind, layout, tuple(parts))
        return
    region = _Region(low, layout)
    elements = list(block.arguments)[: len(op.inputs)]
    for argument, value in zip(elements, op.inputs, strict=True):
        parts = unpacked(low[value])
        region.values[argument] = _per_strip(parts) if layout.is_single else _Varying(parts)
    coordinates = dict(zip(layout.axes, list(block.arguments)[len(op.inputs) :], strict=True))
    along = coordinates.get(layout.along)
    if along is not None and list(along.uses):
        region.values[along] = _Varying(tuple(along_numbers(low, layout)) * region.strip_count)
    *body, last = block.operations
    rounded = _rounded_last(last.value) if is_packed(kind) else None
    if rounded is not None:
        *body, _ = body
    operations = [inner.operation for inner in body]
    across = coordinates.get(layout.across)
    if across is not None:
        origin = thread_origin(low, layout, layout.across)
        if origin is not None and region.is_long(operations) and list(across.uses):
            # otherwise the backend hoists values of all elements out of the loop and spills them
            origin = opaque(origin)
        region.values[across] = _per_strip([shifted(origin, by) for by in layout.strip_offsets])
    reads = any(inner.name == ws.ElementOp.OPERATION_NAME for inner in operations)
    if op.in_turn and along in region.values and (reads or region.is_long(operations)):
        first = region.operand(elements[0]).parts[0]
        region.turns = OrderedCoordinates(low, layout, along, first, op.in_turn)
    region.run(operations)
    result = region.operand(last.value if rounded is None else rounded)
    if rounded is not None:
        parts = [round_and_pack(part, kind.element) for part in _vectors(region, result)]
        low[op.fragment] = Fragment(kind, layout, tuple(parts))
    elif not isinstance(result, _Varying):
        low[op.fragment] = _filled(kind, layout, result)
    elif is_packed(kind):
        low[op.fragment] = Fragment(kind, layout, tuple(map(packed, result.parts)))
    else:
        low[op.fragment] = Fragment(kind, layout, result.parts)


def _is_upcast(op: ws.MapOp) -> bool:
    """Whether a body only upcasts 8-bit elements, which is done a register at a time."""
    first, *others = op.body.blocks[0].operations
    if len(others) != 1 or not isinstance(first, arith.ExtFOp):
        return False
    return ws.element_bits(first.in_.type) == BYTE_BITS and first.in_.owner == op.body.blocks[0]


def _rounded_last(value: Value) -> Value | None:
    """The f32 that the body's last operation rounds to `value`; None without such an operation.

    Packing rounds it.
    """
    owner = value.owner
    if isinstance(owner, arith.TruncFOp) and isinstance(owner.in_.type, ir.F32Type):
        *_, before, _ = owner.operation.block.operations
        if before == owner and len(list(value.uses)) == 1:
            return owner.in_
    return None


def _vectors(region: _Region, value: Any) -> tuple[Value, ...]:
    """A value as vectors, one per part."""
    if isinstance(value, _Varying):
        return value.parts
    values = value.values if isinstance(value, _PerStrip) else [value] * region.strip_count
    return tuple(
        _splat(values[region.strip_of(number)], width) for number, width in enumerate(region.widths)
    )


@lowers(ws.FillOp)
def _fill(low: Lowering, op: ws.FillOp) -> None:
    kind = ws.FragmentType(op.fragment.type)
    low[op.fragment] = _filled(kind, low.layouts[op.fragment], low[op.value])


@lowers(ws.BroadcastOp)
def _broadcast(low: Lowering, op: ws.BroadcastOp) -> None:
    kind, layout = ws.FragmentType(op.fragment.type), low.layouts[op.fragment]
    line: Fragment = low[op.line]
    if line.layout.is_single:
        low[op.fragment] = _filled(kind, layout, _per_strip(line.parts))
    else:
        strip = tuple(map(packed, line.parts)) if is_packed(kind) else line.parts
        low[op.fragment] = Fragment(kind, layout, strip * len(layout.strip_offsets))


def _filled(kind: ws.FragmentType, layout: Layout, value: Any) -> Fragment:
    """A fragment filled with one value, or with one value per strip."""
    count = len(layout.strip_offsets)
    values = value.values if isinstance(value, _PerStrip) else [value] * count
    if layout.is_single:
        return Fragment(kind, layout, tuple(values))
    parts = tuple(_splat(value, width) for value in values for width in layout.part_widths)
    return Fragment(kind, layout, tuple(map(packed, parts)) if is_packed(kind) else parts)


@lowers(ws.ReduceOp)
def _reduce(low: Lowering, op: ws.ReduceOp) -> None:
    init: Fragment = low[op.init]
    parts = reduced(low[op.fragment], init, op.kind.value, op.axis)
    low[op.totals] = Fragment(init.kind, init.layout, parts)


@lowers(ws.FoldOp)
def _fold(low: Lowering, op: ws.FoldOp) -> None:
    init: Fragment = low[op.init]
    low[op.totals] = Fragment(init.kind, init.layout, folded(low[op.fragment], init))


@lowers(ws.TurnOp)
def _turn(low: Lowering, op: ws.TurnOp) -> None:
    kind, layout = ws.FragmentType(op.turned.type), low.layouts[op.turned]
    low[op.turned] = Fragment(kind, layout, low[op.fragment].parts)


@lowers(ws.PinOp)
def _pin(low: Lowering, op: ws.PinOp) -> None:
    kind, layout = ws.FragmentType(op.pinned.type), low.layouts[op.pinned]
    low[op.pinned] = Fragment(kind, layout, tuple(map(opaque_vector, low[op.fragment].parts)))


@lowers(ws.InterleaveOp)
def _interleave(low: Lowering, op: ws.InterleaveOp) -> None:
    kind, layout = ws.FragmentType(op.interleaved.type), low.layouts[op.interleaved]
    low[op.interleaved] = Fragment(kind, layout, low[op.fragment].parts)
