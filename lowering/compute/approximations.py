"""Functions of f32 that no instruction computes, or not over the whole range, by polynomials.

Each builder takes scalars or vectors of f32 and works on them element by element. With d the exact
result, the error is at most

| function | error |
| --- | --- |
| sin, cos | 2^-23, for arguments up to 2^22 in magnitude; beyond the result is NaN |
| expm1, log1p | 2^-22 |d| |
| erf | 2^-22 |d| |
| power x^y | 2^-21 (1 + |y log2 x|) |d|; of a negative x and a y that is no integer NaN |
| remainder | 0, for quotients below 2^46 in magnitude; beyond the result is NaN |

Numbers below 2^-126 in magnitude count as 0, and results below 2^-125 may become 0: kernels flush
them, as the special-function unit does. Infinities and NaN give what IEEE 754 says, where 0 has no
sign. The polynomials' coefficients are those of least maximal relative error on their interval,
found by Lawson's iteration in 60 bits and rounded to f32.
"""

from collections.abc import Callable, Sequence
from typing import Any

from attn_mlir.dialect._mlir import arith, ir, math
from attn_mlir.dialect.scalars import exp2

Value = Any

MAGIC = 12582912.0  # 2^23 + 2^22: adding it rounds to an integer, as the last bit of the sum is 2^0
MANTISSA_BITS = 23
ONE_BITS = 0x3F800000  # the bits of 1.0
ROOT_HALF_BITS = 0x3F3504F3  # the bits of sqrt(1/2)

LOG2_E = 1.4426950216293335
LN2_HIGH, LN2_LOW = 0.6931471824645996, -1.9046542121259336e-09  # ln 2 as a sum of two
TWO_OVER_PI = 0.6366197466850281
HALF_PI = (
    1.5707963705062866,
    -4.371138828673793e-08,
    -1.7151245100058819e-15,
)  # pi / 2 as a sum of three
MAX_ANGLE = 2.0**22
MAX_QUOTIENT = 2.0**46

# (e^r - 1 - r) / r^2, |r| <= 0.35
EXPM1 = (0.5, 0.1666666567325592, 0.04166634753346443, 0.008333391509950161,
         0.0013941640499979258, 0.0001984595728572458)  # fmt: skip
# (log(1 + m) - m + m^2 / 2) / m^3, 1 + m from sqrt(1/2) to sqrt(2)
LOG1P = (0.3333331346511841, -0.25000008940696716, 0.200021430850029, -0.16668042540550232,
         0.14219054579734802, -0.12404341250658035, 0.1189083606004715, -0.11684981733560562,
         0.06752098351716995)  # fmt: skip
SINE = (-0.16666655242443085, 0.008332173340022564, -0.00019516656175255775)
COSINE = (0.04166664555668831, -0.001388736185617745, 2.4437729734927416e-05)
# erf(x) / x - 1, |x| <= 1
ERF = (0.1283791065216064, -0.3761262595653534, 0.1128358542919159, -0.026853812858462334,
       0.005188327748328447, -0.0008010193705558777, 7.853861461626366e-05)  # fmt: skip
# -log2(1 - erf), 1 to 4
ERF_TAIL = (0.000510309764649719, 1.6259750127792358, 0.9207650423049927, 0.14865149557590485,
            -0.03145842254161835, 0.004240956623107195, -0.00026772666024044156)  # fmt: skip
ERF_END = 4.0  # from here on erf is 1 in f32


def _constant(like: Value, value: float | int, kind: Any = None) -> Value:
    """A constant of the shape of `like`, and of its element type unless `kind` says another."""
    shape = like.type
    if isinstance(shape, ir.VectorType):
        shape = shape if kind is None else ir.VectorType.get(shape.shape, kind)
        element = _attribute(shape.element_type, value)
        return arith.ConstantOp(shape, ir.DenseElementsAttr.get_splat(shape, element)).result
    kind = shape if kind is None else kind
    return arith.ConstantOp(kind, _attribute(kind, value)).result


def _attribute(kind: Any, value: float | int) -> Any:
    if isinstance(kind, ir.IntegerType):
        return ir.IntegerAttr.get(kind, int(value))
    return ir.FloatAttr.get(kind, float(value))


class _Number:
    """A value with operators: f32 unless it holds bits (i32) or a condition (i1)."""

    def __init__(self, value: Value):
        self.value = value

    def _other(self, other: "_Number | float | int") -> Value:
        if isinstance(other, _Number):
            return other.value
        return _constant(self.value, other, _element(self.value))

    def _binary(self, op: Any, other: "_Number | float | int") -> "_Number":
        return _Number(op(self.value, self._other(other)).result)

    def __add__(self, other: "_Number | float") -> "_Number":
        return self._binary(arith.AddFOp, other)

    def __sub__(self, other: "_Number | float") -> "_Number":
        return self._binary(arith.SubFOp, other)

    def __mul__(self, other: "_Number | float") -> "_Number":
        return self._binary(arith.MulFOp, other)

    def __truediv__(self, other: "_Number | float") -> "_Number":
        """Division, correctly rounded."""
        return self._binary(arith.DivFOp, other)

    def __neg__(self) -> "_Number":
        return _Number(arith.NegFOp(self.value).result)

    def __abs__(self) -> "_Number":
        return _Number(math.AbsFOp(self.value).result)

    def compare(self, predicate: str, other: "_Number | float") -> "_Number":
        """i1: OEQ, OLT, OLE, UNO, ... of `arith.cmpf`."""
        op = getattr(arith.CmpFPredicate, predicate)
        return _Number(arith.CmpFOp(op, self.value, self._other(other)).result)

    def fma(self, factor: "_Number | float", addend: "_Number | float") -> "_Number":
        """self x factor + addend, rounded once."""
        operands = (self.value, self._other(factor), self._other(addend))
        return _Number(math.FmaOp(*operands).result)

    def where(self, a: "_Number", b: "_Number | float") -> "_Number":
        """`a` where this condition holds, else `b`."""
        other = b if isinstance(b, _Number) else _Number(_constant(a.value, b))
        return _Number(arith.SelectOp(self.value, a.value, other.value).result)

    def both(self, other: "_Number") -> "_Number":
        """i1: whether this condition and the other hold."""
        return self._binary(arith.AndIOp, other)

    def truncated(self) -> "_Number":
        """The value rounded towards 0."""
        return _Number(math.TruncOp(self.value).result)

    def as_bits(self) -> "_Number":
        """The bits of an f32."""
        return self._cast(arith.BitcastOp, ir.IntegerType.get_signless(32))

    def as_float(self) -> "_Number":
        """The f32 of 32 bits."""
        return self._cast(arith.BitcastOp, ir.F32Type.get())

    def to_float(self) -> "_Number":
        """An integer as f32."""
        return self._cast(arith.SIToFPOp, ir.F32Type.get())

    def _cast(self, op: Any, element: Any) -> "_Number":
        shape = self.value.type
        is_vector = isinstance(shape, ir.VectorType)
        kind = ir.VectorType.get(shape.shape, element) if is_vector else element
        return _Number(op(kind, self.value).result)

    def integer(self, op: Any, other: "_Number | int") -> "_Number":
        """An `arith` operation on i32."""
        return self._binary(op, other)

    def bit(self, mask: int) -> "_Number":
        """i1: whether a bit is set."""
        masked = self.integer(arith.AndIOp, mask)
        zero = _constant(masked.value, 0, _element(masked.value))
        return _Number(arith.CmpIOp(arith.CmpIPredicate.ne, masked.value, zero).result)


def _element(value: Value) -> Any:
    shape = value.type
    return shape.element_type if isinstance(shape, ir.VectorType) else shape


def _polynomial(x: _Number, coefficients: Sequence[float]) -> _Number:
    """The polynomial with these coefficients, constant term first, by Horner's rule."""
    value = _Number(_constant(x.value, coefficients[-1]))
    for coefficient in reversed(coefficients[:-1]):
        value = value.fma(x, coefficient)
    return value


def _angle(x: _Number) -> tuple[_Number, _Number]:
    """i32 n and f32 r, |r| <= pi / 4, with x = n pi / 2 + r; n mod 4 is the quadrant."""
    shifted = x.fma(TWO_OVER_PI, MAGIC)
    count = -(shifted - MAGIC)
    reduced = x
    for part in HALF_PI:
        reduced = count.fma(part, reduced)
    return shifted.as_bits(), reduced


def _circular(argument: Value, first_quadrant: int) -> Value:
    x = _Number(argument)
    bits, reduced = _angle(x)
    quadrant = bits.integer(arith.AddIOp, first_quadrant)
    square = reduced * reduced
    sine = (reduced * square).fma(_polynomial(square, SINE), reduced)
    cosine = (square * square).fma(_polynomial(square, COSINE), square.fma(-0.5, 1.0))
    value = quadrant.bit(1).where(cosine, sine)
    value = quadrant.bit(2).where(-value, value)
    return abs(x).compare("OLE", MAX_ANGLE).where(value, float("nan")).value


def sine(x: Value) -> Value:
    """sin(x)"""
    return _circular(x, 0)


def cosine(x: Value) -> Value:
    """cos(x)"""
    return _circular(x, 1)


def expm1(argument: Value) -> Value:
    """e^x - 1"""
    x = _Number(argument)
    x = x.compare("OLT", -25.0).where(
        _Number(_constant(argument, -25.0)), x
    )  # below it the result is -1
    x = x.compare("OGT", 89.0).where(
        _Number(_constant(argument, 89.0)), x
    )  # above it the result is infinity
    shifted = x.fma(LOG2_E, MAGIC)
    count = -(shifted - MAGIC)
    reduced = count.fma(LN2_LOW, count.fma(LN2_HIGH, x))
    small = (reduced * reduced).fma(_polynomial(reduced, EXPM1), reduced)
    # 2^(n - 1): 2^n overflows before the result does
    half = shifted.as_bits().integer(arith.ShLIOp, MANTISSA_BITS)
    half = half.integer(arith.AddIOp, ONE_BITS - (1 << MANTISSA_BITS)).as_float()
    return (small.fma(half, half - 0.5) * 2.0).value


def _exponent(u: _Number) -> _Number:
    """i32 e such that u / 2^e lies between sqrt(1/2) and sqrt(2)."""
    above = u.as_bits().integer(arith.SubIOp, ROOT_HALF_BITS)
    return above.integer(arith.ShRSIOp, MANTISSA_BITS)


def _scaled_down(x: _Number, exponent: _Number) -> _Number:
    """x / 2^exponent, where x and the result are normal numbers."""
    shift = exponent.integer(arith.ShLIOp, MANTISSA_BITS)
    return x.as_bits().integer(arith.SubIOp, shift).as_float()


def _log_near_one(m: _Number) -> _Number:
    """log(1 + m) for 1 + m from sqrt(1/2) to sqrt(2)."""
    return (m * m).fma(_polynomial(m, LOG1P).fma(m, -0.5), m)


def log1p(argument: Value) -> Value:
    """log(1 + x)"""
    x = _Number(argument)
    u = x + 1.0
    exponent = _exponent(u)
    # 2^-e - 1; for the largest e, 2^-e is negligible
    unit = _constant(exponent.value, 127, _element(exponent.value))
    field = _Number(unit).integer(arith.SubIOp, exponent).integer(arith.MaxSIOp, 0)
    unit_power = field.integer(arith.ShLIOp, MANTISSA_BITS).as_float()
    m = _scaled_down(x, exponent) + (unit_power - 1.0)
    count = exponent.to_float()
    value = count.fma(LN2_HIGH, count.fma(LN2_LOW, _log_near_one(m)))
    below = u.compare("OLT", 0.0).where(u * float("nan"), u)
    special = u.compare("OEQ", 0.0).where(_Number(_constant(argument, float("-inf"))), below)
    inside = u.compare("OGT", 0.0).both(u.compare("OLT", float("inf")))
    return inside.where(value, special).value


def erf(argument: Value) -> Value:
    """2 / sqrt(pi) x the integral of exp(-t^2) from 0 to x"""
    x = _Number(argument)
    size = abs(x)
    near = x.fma(_polynomial(x * x, ERF), x)
    capped = size.compare("OGT", ERF_END).where(_Number(_constant(argument, ERF_END)), size)
    complement = _Number(exp2((-_polynomial(capped, ERF_TAIL)).value))
    far = _Number(math.CopySignOp((-(complement - 1.0)).value, argument).result)
    return size.compare("OLT", 1.0).where(near, far).value


def _log2(x: _Number) -> _Number:
    """log2 of a number >= 0, within a few units in the last place."""
    exponent = _exponent(x)
    value = _log_near_one(_scaled_down(x, exponent) - 1.0).fma(LOG2_E, exponent.to_float())
    value = x.compare("OEQ", 0.0).where(_Number(_constant(x.value, float("-inf"))), value)
    return x.compare("OLT", float("inf")).where(value, x)


def power(base: Value, exponent: Value) -> Value:
    """base^exponent"""
    x, y = _Number(base), _Number(exponent)
    logarithm = _log2(abs(x))
    scaled = y * logarithm
    scaled = logarithm.compare("OEQ", 0.0).where(logarithm, scaled)  # also for an infinite y
    size = _Number(exp2(scaled.value))
    half = y * 0.5
    is_whole = y.truncated().compare("OEQ", y)
    is_even = half.truncated().compare("OEQ", half)
    of_negative = is_whole.where(is_even.where(size, -size), float("nan"))
    value = x.compare("OLT", 0.0).where(of_negative, size)
    return y.compare("OEQ", 0.0).where(_Number(_constant(base, 1.0)), value).value


def remainder(dividend: Value, divisor: Value) -> Value:
    """dividend - n divisor, with n the quotient rounded towards 0; it has the dividend's sign.

    The remainder of a correctly rounded quotient is an f32, so each step is exact.
    """
    a, b = _Number(dividend), _Number(divisor)
    quotient = a / b
    result = _reduced(_reduced(a, b, quotient), b, None)
    sign = _Number(math.CopySignOp(_constant(dividend, 1.0), dividend).result)
    other_sign = (result * sign).compare("OLT", 0.0)
    towards = _Number(math.CopySignOp(divisor, dividend).result)
    result = other_sign.where(result + towards, result)
    return abs(quotient).compare("OLT", MAX_QUOTIENT).where(result, float("nan")).value


def _reduced(a: _Number, b: _Number, quotient: _Number | None) -> _Number:
    """a - q b with q the integer part of `quotient`; `a` for q = 0, also if b is infinite."""
    integer_part = (a / b if quotient is None else quotient).truncated()
    return integer_part.compare("OEQ", 0.0).where(a, (-integer_part).fma(b, a))


UNARY: dict[str, Callable[[Value], Value]] = {
    "math.sin": sine,
    "math.cos": cosine,
    "math.erf": erf,
    "math.log1p": log1p,
    "math.expm1": expm1,
}
BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "math.powf": power,
    "arith.remf": remainder,
}
EXPANSIONS: dict[str, Callable[..., Value]] = {**UNARY, **BINARY}
