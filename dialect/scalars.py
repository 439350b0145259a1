"""Short names for scalar operations of `arith`, `math` and `scf` on i32, i1 and f32.

Used by schedules and lowerings alike.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from math import gcd
from typing import Any

from attn_mlir.dialect._mlir import arith, ir, math, scf

Value = Any


def i32() -> Any:
    """The type of sizes, coordinates and loop counters."""
    return ir.IntegerType.get_signless(32)


def i1() -> Any:
    """The type of conditions."""
    return ir.IntegerType.get_signless(1)


def constant(value: int) -> Value:
    """An i32 constant."""
    return arith.ConstantOp(i32(), ir.IntegerAttr.get(i32(), value)).result


def f32_constant(value: float) -> Value:
    """An f32 constant; infinities are allowed."""
    kind = ir.F32Type.get()
    return arith.ConstantOp(kind, ir.FloatAttr.get(kind, value)).result


def is_constant(value: Value, expected: int) -> bool:
    """Whether an i32 is known to be `expected`."""
    owner = value.owner
    if not isinstance(owner, arith.ConstantOp):
        return False
    return ir.IntegerAttr(owner.value).value == expected


def multiple_of(value: Value) -> int:
    """A static divisor of an i32; 0 if it is the constant 0."""
    match value.owner:
        case arith.ConstantOp() as op:
            return abs(ir.IntegerAttr(op.value).value)
        case arith.MulIOp() as op:
            return multiple_of(op.lhs) * multiple_of(op.rhs)
        case arith.AddIOp() | arith.SubIOp() as op:
            return gcd(multiple_of(op.lhs), multiple_of(op.rhs))
        case _:
            return 1


class IntOps:
    """i32 arithmetic on SSA values and Python integers; folds where both are Python integers.

    Implements `Arith`, the arithmetic of masks (`attn.masks`).
    """

    @staticmethod
    def const(value: int) -> Value:
        """An i32 constant."""
        return constant(value)

    @staticmethod
    def _binary(op: Any, a: Value | int, b: Value | int) -> Value:
        a, b = (constant(x) if isinstance(x, int) else x for x in (a, b))
        return op(a, b).result

    def add(self, a: Value | int, b: Value | int) -> Value:
        """a + b"""
        return self._binary(arith.AddIOp, a, b)

    def sub(self, a: Value | int, b: Value | int) -> Value:
        """a - b"""
        return self._binary(arith.SubIOp, a, b)

    def mul(self, a: Value | int, b: Value | int) -> Value:
        """a * b"""
        return self._binary(arith.MulIOp, a, b)

    def floordiv(self, a: Value | int, b: Value | int) -> Value:
        """a / b rounded down, of a at least 0 and b above 0; see `is_plain_division`"""
        return _promised(self._binary(arith.FloorDivSIOp, a, b))

    def ceildiv(self, a: Value | int, b: Value | int) -> Value:
        """a / b rounded up, of a at least 0 and b above 0; see `is_plain_division`"""
        return _promised(self._binary(arith.CeilDivSIOp, a, b))

    def max(self, a: Value | int, b: Value | int) -> Value:
        """The larger"""
        return self._binary(arith.MaxSIOp, a, b)

    def min(self, a: Value | int, b: Value | int) -> Value:
        """The smaller"""
        return self._binary(arith.MinSIOp, a, b)

    def less(self, a: Value, b: Value | int, /) -> Value:
        """i1: a < b"""
        return compare("slt", a, b)

    def not_less(self, a: Value, b: Value | int, /) -> Value:
        """i1: a >= b"""
        return compare("sge", a, b)

    def both(self, a: Value, b: Value) -> Value:
        """i1: a and b"""
        return arith.AndIOp(a, b).result

    def either(self, a: Value, b: Value) -> Value:
        """i1: a or b"""
        return arith.OrIOp(a, b).result

    def negation(self, a: Value) -> Value:
        """i1: not a"""
        true = arith.ConstantOp(i1(), ir.IntegerAttr.get(i1(), 1)).result
        return arith.XOrIOp(a, true).result


INT = IntOps()

_OPERANDS = "ws.operands"
_NONNEGATIVE = "nonnegative"


def _promised(quotient: Value) -> Value:
    """Marks a signed division whose dividend is never negative and whose divisor is positive."""
    quotient.owner.operation.attributes[_OPERANDS] = ir.StringAttr.get(_NONNEGATIVE)
    return quotient


def is_plain_division(op: Any) -> bool:
    """Whether a signed division is marked: dividend >= 0, divisor > 0, so that unsigned is the
    same.

    The code then divides unsigned. The ring proof refuses a negative dividend, and treats a divisor
    as unsigned like the code, since the sizes that it tries include impossible calls.
    """
    attributes = op.operation.attributes
    return _OPERANDS in attributes and ir.StringAttr(attributes[_OPERANDS]).value == _NONNEGATIVE


def compare(predicate: str, a: Value, b: Value | int) -> Value:
    """i1 of a comparison of integers: eq, ne, slt, sle, sgt, sge; ult takes both as numbers without
    a sign.
    """
    b = constant(b) if isinstance(b, int) else b
    return arith.CmpIOp(getattr(arith.CmpIPredicate, predicate), a, b).result


@contextmanager
def when(condition: Value) -> Generator[None]:
    """Emits the body under an `scf.if`."""
    op = scf.IfOp(condition)
    with ir.InsertionPoint(op.then_block):
        yield
        scf.YieldOp([])


@contextmanager
def either(condition: Value) -> Generator[tuple[Any, Any]]:
    """An `scf.if` with two branches: yields two contexts, in which the branches are emitted."""
    op = scf.IfOp(condition, has_else=True)
    yield ir.InsertionPoint(op.then_block), ir.InsertionPoint(op.else_block)
    for block in (op.then_block, op.else_block):
        with ir.InsertionPoint(block):
            scf.YieldOp([])


def chosen(
    condition: Value,
    results: Sequence[Any],
    then: Callable[[], Sequence[Value]],
    otherwise: Callable[[], Sequence[Value]],
) -> list[Value]:
    """An `scf.if` with results of these types, which `then` or `otherwise` returns."""
    op = scf.IfOp(condition, list(results), has_else=True)
    for block, body in ((op.then_block, then), (op.else_block, otherwise)):
        with ir.InsertionPoint(block):
            scf.YieldOp(list(body()))
    return list(op.results)


def loop(
    begin: Value | int,
    end: Value | int,
    carried: Sequence[Value],
    body: Callable[..., Sequence[Value]],
) -> list[Value]:
    """An `scf.for` of step 1 over i32: `body(index, *carried)` returns the next carried values."""
    begin, end = (constant(x) if isinstance(x, int) else x for x in (begin, end))
    op = scf.ForOp(begin, end, constant(1), list(carried))
    with ir.InsertionPoint(op.body):
        scf.YieldOp(list(body(op.induction_variable, *op.inner_iter_args)))
    return list(op.results)


@contextmanager
def iterations(count: Value | int) -> Generator[Value]:
    """An `scf.for` over 0 .. count - 1 without carried values; yields the index."""
    count = constant(count) if isinstance(count, int) else count
    op = scf.ForOp(constant(0), count, constant(1))
    with ir.InsertionPoint(op.body):
        yield op.induction_variable
        scf.YieldOp([])


def fadd(a: Value, b: Value) -> Value:
    """a + b"""
    return arith.AddFOp(a, b).result


def fmax(a: Value, b: Value) -> Value:
    """max(a, b); the other one if one of them is NaN"""
    return arith.MaxNumFOp(a, b).result


def fsub(a: Value, b: Value) -> Value:
    """a - b"""
    return arith.SubFOp(a, b).result


def fmul(a: Value, b: Value) -> Value:
    """a * b"""
    return arith.MulFOp(a, b).result


def fdiv(a: Value, b: Value) -> Value:
    """a / b, with the special-function unit's reciprocal"""
    flags = arith.FastMathFlags.afn | arith.FastMathFlags.arcp
    return arith.DivFOp(a, b, fastmath=flags).result


def fabs(a: Value) -> Value:
    """|a|"""
    return math.AbsFOp(a).result


def fneg(a: Value) -> Value:
    """-a"""
    return arith.NegFOp(a).result


def fma(a: Value, b: Value, c: Value) -> Value:
    """a * b + c, rounded once"""
    return math.FmaOp(a, b, c).result


def exp2(a: Value) -> Value:
    """2 to the power a, by the special-function unit"""
    return math.Exp2Op(a, fastmath=arith.FastMathFlags.afn).result


def log2(a: Value) -> Value:
    """Logarithm to base 2, by the special-function unit"""
    return math.Log2Op(a, fastmath=arith.FastMathFlags.afn).result


def fcompare(predicate: str, a: Value, b: Value) -> Value:
    """i1 of an ordered comparison: OEQ, OLT, OGE, ..."""
    return arith.CmpFOp(getattr(arith.CmpFPredicate, predicate), a, b).result


def select(condition: Value, a: Value, b: Value) -> Value:
    """a where the condition holds, else b"""
    return arith.SelectOp(condition, a, b).result


def truncate(a: Value, element: Any) -> Value:
    """Rounds to a narrower float type, to nearest even"""
    return arith.TruncFOp(element, a).result
