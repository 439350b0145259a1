"""Emits a score modifier's program as operations in the region of `attn.mha`."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from attn_mlir.dialect._mlir import arith, ir, math, tensor
from attn_mlir.dialect.attn.backward.adjoint import AdjointOp
from attn_mlir.dialect.attn.backward.slope import SlopeOp
from attn_mlir.dialect.attn.modifier.keep import KeepOp
from attn_mlir.dialect.attn.modifier.sink import SinkOp
from attn_mlir.dialect.attn.programs.derivative import differentiated
from attn_mlir.dialect.attn.programs.program import (
    ARGUMENTS,
    COMPARISONS,
    Node,
    Program,
    never_negative,
)
from attn_mlir.dialect.attn.programs.reads import KEY_PARTS, QUARTERS
from attn_mlir.dialect.scalars import fdiv

Value = Any

FLOAT_OPS: dict[str, Any] = {
    "add": arith.AddFOp,
    "sub": arith.SubFOp,
    "mul": arith.MulFOp,
    "min": arith.MinimumFOp,  # NaN if one of both is, as in numpy and torch
    "max": arith.MaximumFOp,
    "neg": arith.NegFOp,
    "abs": math.AbsFOp,
    "exp": math.ExpOp,
    "exp2": math.Exp2Op,
    "log": math.LogOp,
    "log2": math.Log2Op,
    "tanh": math.TanhOp,
    "sqrt": math.SqrtOp,
    "floor": math.FloorOp,
    "ceil": math.CeilOp,
    "sin": math.SinOp,
    "cos": math.CosOp,
    "erf": math.ErfOp,
    "log1p": math.Log1pOp,
    "expm1": math.ExpM1Op,
    "round": math.RoundEvenOp,
    "trunc": math.TruncOp,
    "pow": math.PowFOp,
}
_NARROW: dict[str, Any] = {"f16": ir.F16Type, "bf16": ir.BF16Type}
INTEGER_OPS: dict[str, Any] = {
    "add": arith.AddIOp,
    "sub": arith.SubIOp,
    "mul": arith.MulIOp,
    "min": arith.MinSIOp,
    "max": arith.MaxSIOp,
    "and": arith.AndIOp,
    "or": arith.OrIOp,
    "xor": arith.XOrIOp,
    "shl": arith.ShLIOp,
    "shr": arith.ShRSIOp,
    "abs": math.AbsIOp,
}
FLOAT_PREDICATES = {"eq": "OEQ", "ne": "UNE", "lt": "OLT", "le": "OLE", "gt": "OGT", "ge": "OGE"}
_INTEGER_PREDICATES = {c: c if c in ("eq", "ne") else f"s{c}" for c in COMPARISONS}


def emit_program(program: Program, arguments: Sequence[Value], tensors: Sequence[Value]) -> Value:
    """Emits a program at the insertion point.

    Args:
      program: what to emit.
      arguments: values of score, batch, head, q, k.
      tensors: values of the captured tensors.

    Returns:
      The modified score; `attn.keep` and `attn.sink` operations have been emitted.
    """
    values = _Emitter(program.nodes, arguments, tensors).values
    for number in program.keeps:
        KeepOp(values[number])
    if program.sink is not None:
        SinkOp(values[program.sink])
    return values[program.score]


class Target(NamedTuple):
    """Memory for what scores pass on to the elements of a tensor.

    Attributes:
      memory: f32, with dimensions for arguments before those of the tensor.
      lead: names of arguments whose values are the leading indices; a name of `KEY_PARTS` stands
        for the quarter of the key.
      adds: whether several scores or rows write to an element.
    """

    memory: Value
    lead: tuple[str, ...]
    adds: bool


def emit_derivative(
    program: Program,
    arguments: Sequence[Value],
    tensors: Sequence[Value],
    targets: Mapping[str, Target] = MappingProxyType({}),
    rows: str = "q",
) -> Value:
    """As `emit_program`, with `attn.slope` where the derivative by the score is not 1.

    Args:
      targets: of each `attn.adjoint`, by names of tensors.
      rows: the positions that rows are, `q` or `k`.

    Raises:
      SpecError: the score depends on an operation that has no derivative.
    """
    derivative = differentiated(program)
    emitter = _Emitter(derivative.nodes, arguments, tensors)
    values = emitter.values
    for number in program.keeps:
        KeepOp(values[number])
    if not derivative.is_shift:
        SlopeOp(values[derivative.slope])
    for read in derivative.reads:
        name = derivative.tensors[read.tensor].name
        if name not in targets:
            continue
        memory, lead, adds = targets[name]
        coords = [
            *(emitter.argument(x) for x in lead),
            *emitter.coordinates(derivative.nodes[read.node]),
        ]
        per = ir.StringAttr.get("row" if read.pattern.is_of_rows(rows) else "score")
        mode = ir.StringAttr.get("add" if adds else "store")
        AdjointOp(values[read.adjoint], memory, coords, per, mode)
    return values[derivative.score]


def _type(name: str) -> Any:
    return ir.F32Type.get() if name == "f32" else ir.IntegerType.get_signless(int(name[1:]))


def _constant(kind: Any, value: Any) -> Value:
    attribute = (
        ir.FloatAttr.get(kind, float(value))
        if isinstance(kind, ir.F32Type)
        else ir.IntegerAttr.get(kind, int(value))
    )
    return arith.ConstantOp(kind, attribute).result


class _Emitter:
    """Emits nodes, in order.

    Attributes:
      arguments: the values of arguments, by name.
      values: of all nodes.
    """

    def __init__(self, nodes: Sequence[Node], arguments: Sequence[Value], tensors: Sequence[Value]):
        self.arguments: dict[str, Value] = dict(zip(ARGUMENTS, arguments, strict=True))
        self._tensors = tensors
        self._nodes = nodes
        self._never_negative = never_negative(nodes)
        self.values: list[Value] = []
        for node in nodes:
            self.values.append(self._emit(node, [self.values[number] for number in node.args]))

    def argument(self, name: str) -> Value:
        """The value of an argument, or for a name of `KEY_PARTS` the quarter of the key."""
        if name not in KEY_PARTS:
            return self.arguments[name]
        i32 = _type("i32")
        shifted = arith.ShRSIOp(self.arguments["k"], _constant(i32, KEY_PARTS[name])).result
        return arith.AndIOp(shifted, _constant(i32, QUARTERS - 1)).result

    def coordinates(self, node: Node) -> list[Value]:
        """The coordinates of a read as i32; those below 0 are counted from the end."""
        source = self._tensors[int(node.value or 0)]
        found: list[Value] = []
        for axis, place in enumerate(node.args):
            coord = _narrowed(self.values[place])
            if not self._never_negative[place]:
                coord = _from_end(source, axis, coord)
            found.append(coord)
        return found

    def _emit(self, node: Node, args: Sequence[Value]) -> Value:
        """The value of one node."""
        special: dict[str, Callable[[Node, Sequence[Value]], Value]] = {
            "argument": lambda node, _: self.arguments[str(node.value)],
            "constant": lambda node, _: _constant(_type(node.type), node.value),
            "load": self._load,
            "cast": self._cast,
            "where": lambda _, args: arith.SelectOp(*args).result,
            "div": lambda _, args: fdiv(*args),
            "not": lambda _, args: arith.XOrIOp(args[0], _constant(_type("i1"), True)).result,
            "floordiv": lambda node, args: _division(node.type)(*args)[0],
            "mod": lambda node, args: _division(node.type)(*args)[1],
            "f16": _rounded,
            "bf16": _rounded,
        }
        if node.op in special:
            return special[node.op](node, args)
        is_float = self._nodes[node.args[0]].type == "f32"
        if node.op in COMPARISONS:
            return _compare(node.op, is_float, args)
        if node.op == "neg" and not is_float:
            return arith.SubIOp(_constant(args[0].type, 0), args[0]).result
        table = FLOAT_OPS if is_float else INTEGER_OPS
        return table[node.op](*args).result

    def _load(self, node: Node, _: Sequence[Value]) -> Value:
        """An element of a captured tensor, as a value of one of the program's types."""
        source = self._tensors[int(node.value or 0)]
        index = ir.IndexType.get()
        coords = [arith.IndexCastOp(index, x).result for x in self.coordinates(node)]
        element = tensor.ExtractOp(source, coords).result
        wanted, is_unsigned = _type(node.type), str(element.type).startswith("ui")
        if is_unsigned or str(element.type).startswith("si"):
            element = _signless(element)
        kind = element.type
        if kind == wanted:
            return element
        if isinstance(wanted, ir.F32Type):
            narrows = isinstance(kind, ir.F64Type)
            return (arith.TruncFOp if narrows else arith.ExtFOp)(wanted, element).result
        if node.type == "i1":
            zero = _constant(kind, 0)
            return arith.CmpIOp(arith.CmpIPredicate.ne, element, zero).result
        if kind.width < wanted.width:
            return (arith.ExtUIOp if is_unsigned else arith.ExtSIOp)(wanted, element).result
        raise AssertionError(f"no {node.type} is loaded from a tensor of {kind}")

    def _cast(self, node: Node, args: Sequence[Value]) -> Value:
        source, target = self._nodes[node.args[0]].type, node.type
        wanted = _type(target)
        if source == "f32":
            return arith.FPToSIOp(wanted, args[0]).result
        if source == "i64" and target == "i32":
            return arith.TruncIOp(wanted, args[0]).result
        if target in ("i32", "i64"):
            return (arith.ExtUIOp if source == "i1" else arith.ExtSIOp)(wanted, args[0]).result
        op = arith.UIToFPOp if source == "i1" else arith.SIToFPOp
        return op(wanted, args[0]).result


def _signless(element: Value) -> Value:
    """An integer with a signless type, as `arith` needs it."""
    kind = ir.IntegerType.get_signless(element.type.width)
    name = "builtin.unrealized_conversion_cast"
    return ir.Operation.create(name, results=[kind], operands=[element]).result


def _rounded(node: Node, args: Sequence[Value]) -> Value:
    """Rounds to a narrower float type and converts back to f32."""
    narrow = arith.TruncFOp(_NARROW[node.op].get(), args[0]).result
    return arith.ExtFOp(args[0].type, narrow).result


def _narrowed(coord: Value) -> Value:
    """A coordinate as i32; a wider one is clamped to the range, so that it stays outside the
    tensor.
    """
    i32 = _type("i32")
    if coord.type == i32:
        return coord
    low, high = (_constant(coord.type, bound) for bound in (-(2**31), 2**31 - 1))
    inside = arith.MaxSIOp(arith.MinSIOp(coord, high).result, low).result
    return arith.TruncIOp(i32, inside).result


def _from_end(source: Value, axis: int, coord: Value) -> Value:
    """A coordinate as Python indexes: one below 0 counts from the end of its axis."""
    i32 = _type("i32")
    extent = tensor.DimOp(source, _constant(ir.IndexType.get(), axis)).result
    from_end = arith.AddIOp(coord, arith.IndexCastOp(i32, extent).result).result
    below = arith.CmpIOp(arith.CmpIPredicate.slt, coord, _constant(i32, 0)).result
    return arith.SelectOp(below, from_end, coord).result


def _compare(op: str, is_float: bool, args: Sequence[Value]) -> Value:
    if is_float:
        predicate = getattr(arith.CmpFPredicate, FLOAT_PREDICATES[op])
        return arith.CmpFOp(predicate, *args).result
    predicate = getattr(arith.CmpIPredicate, _INTEGER_PREDICATES[op])
    return arith.CmpIOp(predicate, *args).result


def _division(kind: str) -> Callable[[Value, Value], tuple[Value, Value]]:
    return _float_floor_division if kind == "f32" else _floor_division


def _floor_division(a: Value, b: Value) -> tuple[Value, Value]:
    """Quotient rounded down, and the remainder with the divisor's sign, as in Python."""
    quotient, remainder = arith.DivSIOp(a, b).result, arith.RemSIOp(a, b).result
    zero = _constant(a.type, 0)
    uneven = arith.CmpIOp(arith.CmpIPredicate.ne, remainder, zero).result
    signs = arith.CmpIOp(arith.CmpIPredicate.slt, arith.XOrIOp(remainder, b).result, zero).result
    down = arith.AndIOp(uneven, signs).result
    lower = arith.SubIOp(quotient, _constant(a.type, 1)).result
    raised = arith.AddIOp(remainder, b).result
    return (
        arith.SelectOp(down, lower, quotient).result,
        arith.SelectOp(down, raised, remainder).result,
    )


def _float_floor_division(a: Value, b: Value) -> tuple[Value, Value]:
    """Floor division of floats as in Python: an exact remainder,
    and the quotient computed from it.
    """
    f32 = _type("f32")
    rest = arith.RemFOp(a, b).result
    zero, one = _constant(f32, 0.0), _constant(f32, 1.0)
    predicate = arith.CmpFPredicate
    uneven = arith.CmpFOp(predicate.ONE, rest, zero).result
    is_below = [arith.CmpFOp(predicate.OLT, value, zero).result for value in (rest, b)]
    down = arith.AndIOp(uneven, arith.XOrIOp(*is_below).result).result
    quotient = arith.DivFOp(arith.SubFOp(a, rest).result, b).result
    quotient = math.RoundEvenOp(quotient).result
    quotient = arith.SelectOp(down, arith.SubFOp(quotient, one).result, quotient).result
    is_zero = arith.CmpFOp(predicate.OEQ, b, zero).result
    quotient = arith.SelectOp(is_zero, arith.DivFOp(a, b).result, quotient).result
    return quotient, arith.SelectOp(down, arith.AddFOp(rest, b).result, rest).result
