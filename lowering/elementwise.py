"""Element-wise regions, fills, broadcasts and reductions over the columns a thread holds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm, vector
from attn_mlir.dialect.scalars import (
    constant,
    exp2,
    f32_constant,
    fadd,
    fdiv,
    fmul,
    fsub,
    i1,
    i32,
)

from .approximations import EXPANSIONS
from .context import CHUNK, FULL_WARP, Fragment, Lowering, load_input, lowers, lowers_named
from .inline_ptx import opaque
from .narrow import is_packed, packed, round_and_pack, unpacked
from .scalar_ops import check_scalar

Value = Any
LN2 = math.log(2.0)
# columns; a modifier of 100 operations spills 41 KiB at 32 and nothing at 4 (ptxas 13.5)
NARROW = 4
SHORT_BODY = 4  # operations that differ between columns; up to here bodies are evaluated whole


@dataclass(frozen=True)
class _Varying:
    """A value of an element-wise region that differs between columns: a vector per part."""

    parts: tuple[Value, ...]


def _splat(value: Value, width: int) -> Value:
    return vector.BroadcastOp(ir.VectorType.get([width], value.type), value).result


def _column_widths(kind: ws.FragmentType) -> list[int]:
    columns = kind.shape[1]
    return [min(CHUNK, columns - c) for c in range(0, columns, CHUNK)]


def _column_numbers(widths: Sequence[int]) -> _Varying:
    """The column coordinate as constant vectors."""
    parts: list[Value] = []
    first = 0
    for width in widths:
        kind = ir.VectorType.get([width], i32())
        numbers = [ir.IntegerAttr.get(i32(), first + i) for i in range(width)]
        parts.append(arith.ConstantOp(kind, ir.DenseElementsAttr.get(numbers, kind)).result)
        first += width
    return _Varying(tuple(parts))


class _Region:
    """Evaluates the body of a `ws.map`; what does not depend on the column stays scalar.

    Long bodies are evaluated `NARROW` columns at a time, the whole body before the next columns
    begin: what they compute on the way then lives for these columns and not for a whole row.
    """

    def __init__(self, low: Lowering, widths: Sequence[int]):
        self.low = low
        self.widths = widths
        self.values: dict[Any, Any] = {}

    def operand(self, value: Value) -> Any:
        """A value of the region, or one from outside."""
        return self.values[value] if value in self.values else self.low[value]

    def varying(self, operations: Sequence[Any]) -> list[Any]:
        """The operations whose results differ between columns, given which arguments do."""
        values = {value for value, found in self.values.items() if isinstance(found, _Varying)}
        found: list[Any] = []
        for op in operations:
            if any(value in values for value in op.operands):
                found.append(op)
                values.update(op.results)
        return found

    def is_long(self, operations: Sequence[Any]) -> bool:
        """Whether the body is evaluated a few columns at a time."""
        return max(self.widths, default=0) > NARROW and len(self.varying(operations)) > SHORT_BODY

    def run(self, operations: Sequence[Any]) -> None:
        """Evaluates the scalar operations of the body, in order."""
        varying = self.varying(operations)
        for op in operations:
            if op.name not in _SPECIAL and op.name not in EXPANSIONS:
                check_scalar(op)
            (result,) = op.results
            if op in varying:
                self.values[result] = _Varying(())
            else:
                self.values[result] = self._scalar(op, [self.operand(x) for x in op.operands])
        is_long = self.is_long(operations)
        for number, width in enumerate(self.widths):
            step = NARROW if is_long and width % NARROW == 0 else width
            self._run_part(varying, number, range(0, width, step), step)

    def _run_part(self, varying: Sequence[Any], number: int, starts: range, step: int) -> None:
        """Evaluates what differs between columns on one part, `step` columns at a time."""
        pieces: dict[Value, list[Value]] = {op.results[0]: [] for op in varying}
        for first in starts:
            for op in varying:
                operands = [
                    pieces[value][-1]
                    if value in pieces
                    else self._piece(value, number, first, step)
                    for value in op.operands
                ]
                pieces[op.results[0]].append(self._vector(op, operands, step))
        for result, found in pieces.items():
            self.values[result] = _Varying((*self.values[result].parts, _joined(found)))

    def _piece(self, value: Value, number: int, first: int, step: int) -> Any:
        """Some columns of a value that was there before, or a scalar."""
        found = self.operand(value)
        if not isinstance(found, _Varying):
            return found
        part = found.parts[number]
        if part.type.shape[0] == step:
            return part
        kind = ir.VectorType.get([step], part.type.element_type)
        return vector.ExtractStridedSliceOp(kind, part, [first], [step], [1]).result

    def _scalar(self, op: Any, operands: Sequence[Value]) -> Value:
        """An operation that is the same for all columns."""
        if op.name in _SPECIAL:
            return _SPECIAL[op.name](self.low, op, operands)
        if op.name in EXPANSIONS:
            return EXPANSIONS[op.name](*operands)
        attributes = dict(op.attributes.items())
        return ir.Operation.create(
            op.name, results=[op.results[0].type], operands=operands, attributes=attributes
        ).result

    def _vector(self, op: Any, operands: Sequence[Value], width: int) -> Value:
        """An operation on some columns; one that has no vector form column by column."""
        kind = ir.VectorType.get([width], op.results[0].type)
        wide = [isinstance(self.operand(value), _Varying) for value in op.operands]
        pairs = list(zip(operands, wide, strict=True))
        if op.name not in _SPECIAL:
            attributes = dict(op.attributes.items())
            vectors = [x if is_wide else _splat(x, width) for x, is_wide in pairs]
            if op.name in EXPANSIONS:
                return EXPANSIONS[op.name](*vectors)
            return ir.Operation.create(
                op.name, results=[kind], operands=vectors, attributes=attributes
            ).result
        elements: list[Value] = []
        for i in range(width):
            column = [vector.ExtractOp(x, [], [i]).result if is_wide else x for x, is_wide in pairs]
            elements.append(_SPECIAL[op.name](self.low, op, column))
        return vector.FromElementsOp(kind, elements).result


def _joined(pieces: Sequence[Value]) -> Value:
    """Vectors of one width, one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    width = pieces[0].type.shape[0]
    kind = ir.VectorType.get([width * len(pieces)], pieces[0].type.element_type)
    elements = [vector.ExtractOp(piece, [], [i]).result for piece in pieces for i in range(width)]
    return vector.FromElementsOp(kind, elements).result


def _log2(low: Lowering, op: Any, operands: Sequence[Value]) -> Value:
    """`lg2.approx`: the backend has no code for the operation itself."""
    name = ir.StringAttr.get("llvm.nvvm.lg2.approx.ftz.f")
    return llvm.CallIntrinsicOp(operands[0].type, name, [operands[0]], [], []).results_


def _log(low: Lowering, op: Any, operands: Sequence[Value]) -> Value:
    return fmul(_log2(low, op, operands), f32_constant(LN2))


def _exp(low: Lowering, op: Any, operands: Sequence[Value]) -> Value:
    return exp2(fmul(operands[0], f32_constant(1.0 / LN2)))


def _tanh(low: Lowering, op: Any, operands: Sequence[Value]) -> Value:
    """1 - 2 / (e^2x + 1): `tanh.approx` is off by 2^-11, which a softcap multiplies."""
    one, two = f32_constant(1.0), f32_constant(2.0)
    power = exp2(fmul(operands[0], f32_constant(2.0 / LN2)))
    return fsub(one, fdiv(two, fadd(power, one)))


def _element(low: Lowering, op: Any, operands: Sequence[Value]) -> Value:
    return load_input(low, op.operands[0], operands[1:])


def _extent(low: Lowering, op: Any, operands: Sequence[Value]) -> Value:
    return low.extent(op.operands[0], ir.IntegerAttr(op.attributes["dim"]).value)


_SPECIAL: "dict[str, Callable[[Lowering, Any, Sequence[Value]], Value]]" = {
    "math.log2": _log2,
    "math.log": _log,
    "math.exp": _exp,
    "math.tanh": _tanh,
    ws.ElementOp.OPERATION_NAME: _element,
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
    kind = ws.FragmentType(op.fragment.type)
    is_rows = len(kind.shape) == 1
    region = _Region(low, [] if is_rows else _column_widths(kind))
    block = op.body.blocks[0]
    elements = list(block.arguments)[: len(op.inputs)]
    for argument, value in zip(elements, op.inputs, strict=True):
        fragment: Fragment = low[value]
        region.values[argument] = fragment.parts[0] if is_rows else _Varying(unpacked(fragment))
    coordinates = list(block.arguments)[len(op.inputs) :]
    if not is_rows and list(coordinates[1].uses):
        region.values[coordinates[1]] = _column_numbers(region.widths)
    *body, last = block.operations
    rounded = _rounded_last(last.value) if is_packed(kind) else None
    if rounded is not None:
        *body, _ = body
    operations = [inner.operation for inner in body]
    row = low.active.row
    if region.is_long(operations) and list(coordinates[0].uses):
        # what hangs on the row would be moved out of the loop over tiles, per column, and spilled
        row = opaque(row)
    region.values[coordinates[0]] = row
    region.run(operations)
    result = region.operand(last.value if rounded is None else rounded)
    if rounded is not None:
        parts = [round_and_pack(part, kind.element) for part in _columns(region, result)]
        low[op.fragment] = Fragment(kind, tuple(parts))
    elif not isinstance(result, _Varying):
        low[op.fragment] = _spread(kind, result)
    elif is_packed(kind):
        low[op.fragment] = Fragment(kind, tuple(map(packed, result.parts)))
    else:
        low[op.fragment] = Fragment(kind, result.parts)


def _rounded_last(value: Value) -> Value | None:
    """The f32 that a body rounds to `value` at its end: rounding and packing are one step."""
    owner = value.owner
    if isinstance(owner, arith.TruncFOp) and isinstance(owner.in_.type, ir.F32Type):
        *_, before, _ = owner.operation.block.operations
        if before == owner and len(list(value.uses)) == 1:
            return owner.in_
    return None


def _columns(region: _Region, value: Any) -> tuple[Value, ...]:
    """A value as vectors, one per part."""
    if isinstance(value, _Varying):
        return value.parts
    return tuple(_splat(value, width) for width in region.widths)


@lowers(ws.FillOp)
def _fill(low: Lowering, op: ws.FillOp) -> None:
    kind = ws.FragmentType(op.fragment.type)
    low[op.fragment] = _spread(kind, low[op.value])


@lowers(ws.BroadcastOp)
def _broadcast(low: Lowering, op: ws.BroadcastOp) -> None:
    kind = ws.FragmentType(op.fragment.type)
    low[op.fragment] = _spread(kind, low[op.rows].parts[0])


def _spread(kind: ws.FragmentType, value: Value) -> Fragment:
    if len(kind.shape) == 1:
        return Fragment(kind, (value,))
    parts = tuple(_splat(value, width) for width in _column_widths(kind))
    return Fragment(kind, tuple(map(packed, parts)) if is_packed(kind) else parts)


@lowers(ws.ReduceOp)
def _reduce(low: Lowering, op: ws.ReduceOp) -> None:
    fragment: Fragment = low[op.fragment]
    init = low[op.init].parts[0]
    total = _maximum(fragment, init) if op.kind.value == "max" else _sum(fragment, init)
    low[op.rows] = Fragment(ws.FragmentType(op.rows.type), (total,))


def _maximum(fragment: Fragment, init: Value) -> Value:
    """The backend makes a tree of 3-input maxima of each vector reduction."""
    kind = ir.Attribute.parse("#vector.kind<maxnumf>")
    for part in fragment.parts:
        init = vector.ReductionOp(part.type.element_type, kind, part, acc=init).result
    return init


def _sum(fragment: Fragment, init: Value) -> Value:
    """A tree of packed additions: across parts of one width, then halving, then single columns."""
    parts = list(fragment.parts)
    while len(parts) > 1 and parts[-1].type == parts[0].type:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        odd = parts[len(parts) & ~1 :]
        parts = [arith.AddFOp(a, b).result for a, b in pairs] + odd
    singles = [column for part in parts for column in _halved(part)]
    for column in singles:
        init = arith.AddFOp(init, column).result
    return init


def _halved(part: Value) -> list[Value]:
    """Scalars that add up to the sum of a vector: one, and one for each odd width on the way."""
    left_over: list[Value] = []
    while (width := part.type.shape[0]) > 1:
        half = width // 2
        if width % 2:
            left_over.append(vector.ExtractOp(part, [], [width - 1]).result)
        kind = ir.VectorType.get([half], part.type.element_type)
        low, high = (
            vector.ExtractStridedSliceOp(kind, part, [first], [half], [1]).result
            for first in (0, half)
        )
        part = arith.AddFOp(low, high).result
    return [vector.ExtractOp(part, [], [0]).result, *left_over]


@lowers(ws.AnyOp)
def _any(low: Lowering, op: ws.AnyOp) -> None:
    kind = ir.Attribute.parse("#nvvm<vote_sync_kind any>")
    condition = low[op.rows].parts[0]
    low[op.holds] = nvvm.VoteSyncOp(constant(FULL_WARP), condition, kind, results=[i1()]).result
