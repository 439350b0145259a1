"""A score modifier's program as operations of the region of `attn.mha`."""

from collections.abc import Callable, Sequence
from typing import Any

from attn_mlir.dialect._mlir import arith, ir, math, tensor
from attn_mlir.dialect.attn.keep import KeepOp
from attn_mlir.dialect.attn.program import ARGUMENTS, COMPARISONS, Node, Program
from attn_mlir.dialect.attn.sink import SinkOp
from attn_mlir.dialect.scalars import fdiv

Value = Any

_FLOAT_OPS: dict[str, Any] = {
    "add": arith.AddFOp,
    "sub": arith.SubFOp,
    "mul": arith.MulFOp,
    "min": arith.MinNumFOp,
    "max": arith.MaxNumFOp,
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
}
_INTEGER_OPS: dict[str, Any] = {
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
_FLOAT_PREDICATES = {"eq": "OEQ", "ne": "UNE", "lt": "OLT", "le": "OLE", "gt": "OGT", "ge": "OGE"}
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
    emitter = _Emitter(program, arguments, tensors)
    values: list[Value] = []
    for node in program.nodes:
        values.append(emitter.emit(node, [values[number] for number in node.args]))
    for number in program.keeps:
        KeepOp(values[number])
    if program.sink is not None:
        SinkOp(values[program.sink])
    return values[program.score]


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
    """Emits nodes one by one."""

    def __init__(self, program: Program, arguments: Sequence[Value], tensors: Sequence[Value]):
        self._arguments: dict[str, Value] = dict(zip(ARGUMENTS, arguments, strict=True))
        self._tensors = tensors
        self._nodes = program.nodes

    def emit(self, node: Node, args: Sequence[Value]) -> Value:
        """The value of one node."""
        special: dict[str, Callable[[Node, Sequence[Value]], Value]] = {
            "argument": lambda node, _: self._arguments[str(node.value)],
            "constant": lambda node, _: _constant(_type(node.type), node.value),
            "load": self._load,
            "cast": self._cast,
            "where": lambda _, args: arith.SelectOp(*args).result,
            "div": lambda _, args: fdiv(*args),
            "not": lambda _, args: arith.XOrIOp(args[0], _constant(_type("i1"), True)).result,
            "floordiv": lambda _, args: _floor_division(*args)[0],
            "mod": lambda _, args: _floor_division(*args)[1],
        }
        if node.op in special:
            return special[node.op](node, args)
        is_float = self._nodes[node.args[0]].type == "f32"
        if node.op in COMPARISONS:
            return _compare(node.op, is_float, args)
        if node.op == "neg" and not is_float:
            return arith.SubIOp(_constant(_type("i32"), 0), args[0]).result
        table = _FLOAT_OPS if is_float else _INTEGER_OPS
        return table[node.op](*args).result

    def _load(self, node: Node, args: Sequence[Value]) -> Value:
        """An element of a captured tensor, as f32, i32 or i1."""
        source = self._tensors[int(node.value or 0)]
        index = ir.IndexType.get()
        coords = [arith.IndexCastOp(index, coord).result for coord in args]
        element = tensor.ExtractOp(source, coords).result
        kind, wanted = element.type, _type(node.type)
        if kind == wanted:
            return element
        if isinstance(wanted, ir.F32Type):
            return arith.ExtFOp(wanted, element).result
        if node.type == "i1":
            zero = _constant(kind, 0)
            return arith.CmpIOp(arith.CmpIPredicate.ne, element, zero).result
        return arith.TruncIOp(wanted, element).result

    def _cast(self, node: Node, args: Sequence[Value]) -> Value:
        source, target = self._nodes[node.args[0]].type, node.type
        wanted = _type(target)
        if source == "f32":
            return arith.FPToSIOp(wanted, args[0]).result
        if target == "i32":
            return arith.ExtUIOp(wanted, args[0]).result
        op = arith.UIToFPOp if source == "i1" else arith.SIToFPOp
        return op(wanted, args[0]).result


def _compare(op: str, is_float: bool, args: Sequence[Value]) -> Value:
    if is_float:
        predicate = getattr(arith.CmpFPredicate, _FLOAT_PREDICATES[op])
        return arith.CmpFOp(predicate, *args).result
    predicate = getattr(arith.CmpIPredicate, _INTEGER_PREDICATES[op])
    return arith.CmpIOp(predicate, *args).result


def _floor_division(a: Value, b: Value) -> tuple[Value, Value]:
    """Quotient rounded down, and the remainder with the divisor's sign, as in Python."""
    i32 = _type("i32")
    quotient, remainder = arith.DivSIOp(a, b).result, arith.RemSIOp(a, b).result
    zero = _constant(i32, 0)
    uneven = arith.CmpIOp(arith.CmpIPredicate.ne, remainder, zero).result
    signs = arith.CmpIOp(arith.CmpIPredicate.slt, arith.XOrIOp(remainder, b).result, zero).result
    down = arith.AndIOp(uneven, signs).result
    lower = arith.SubIOp(quotient, _constant(i32, 1)).result
    raised = arith.AddIOp(remainder, b).result
    return (
        arith.SelectOp(down, lower, quotient).result,
        arith.SelectOp(down, raised, remainder).result,
    )
