"""The arithmetic of online softmax for one row: its maximum, its sum and its scores.

A row has c = scale x log2(e), a maximum m, which may be stale (below the largest score), and a sum
l:

    P = 2^(S c - m c + bias)       LSE = m scale + ln l - bias ln 2

S c - m c is one multiply-add per score, in which m c is rounded. The rounding error multiplies all
weights of a key tile by 2^error, unlike those of a tile with another m. Where |m c| is 2^10 or
more, the exponent is computed as (S - m) c instead, which is exact enough at any size: a warp
branches to that if one of its rows needs it.
"""

import math
from dataclasses import dataclass

from attn_mlir.dialect import ws

from .. import emit as b
from ..core.problem import Problem, Value

HIDDEN_BELOW = (
    -2e38
)  # modified scores below this count as -inf: times log2(e) they would overflow f32
LARGEST_F32 = (2.0 - 2.0**-23) * 2.0**127
LARGE_EXPONENT = 2.0**10  # from here on m c in f32 is rounded by up to 2^-14 or more
LN2 = math.log(2.0)
LOG2E = 1.0 / LN2


@dataclass(frozen=True)
class Row:
    """The arithmetic of one row, with scores S, maximum m and sum l.

    Attributes:
      scale: multiplies S; None if the modifier gets scaled scores.
      scale_log2: c, the scale times log2(e).
      lowest: lower bound of the maximum of a row that has seen a key.
      threshold: by how much m may lag behind the largest score, in log2 units.
      exponent_bias: P is 2^bias where S equals m.
    """

    scale: Value | None
    scale_log2: Value
    lowest: float
    threshold: int
    exponent_bias: int

    @classmethod
    def of(cls, problem: Problem, scale: Value) -> "Row":
        """The arithmetic of a problem whose scores are multiplied by `scale`; emits c."""
        threshold, exponent_bias = problem.config.rescale_threshold, problem.exponent_bias
        if problem.modifier.changes:
            return cls(None, b.f32_constant(LOG2E), HIDDEN_BELOW, threshold, exponent_bias)
        return cls.scaled(scale, threshold, exponent_bias)

    @classmethod
    def scaled(cls, scale: Value, threshold: int, exponent_bias: int = 0) -> "Row":
        """The arithmetic of scores that only a scale changes; emits c."""
        scale_log2 = b.fmul(scale, b.f32_constant(LOG2E))
        return cls(scale, scale_log2, -LARGEST_F32, threshold, exponent_bias)

    def reference(self, maximum: Value) -> Value:
        """The maximum, or 0 for a row that has seen no key, so that -inf - reference is -inf."""
        empty = b.fcompare("OLT", maximum, b.f32_constant(self.lowest))
        return b.select(empty, b.f32_constant(0.0), maximum)

    def _lag(self, maximum: Value, largest: Value) -> Value:
        """m - largest in log2 units, at most 0."""
        return b.fmul(b.fsub(maximum, self.reference(largest)), self.scale_log2)

    def limit(self, maximum: Value) -> Value:
        """The largest score that lets m stay: m + threshold / c."""
        if not self.threshold:
            return maximum
        slack = b.fdiv(b.f32_constant(float(self.threshold)), self.scale_log2)
        return b.fadd(maximum, slack)

    def exact_alpha(self, maximum: Value, new_maximum: Value) -> Value:
        """alpha: rescales O and l_i when m_i becomes `new_maximum`."""
        return b.exp2(self._lag(maximum, new_maximum))

    def _stays(self, maximum: Value, largest: Value) -> Value:
        lag = self._lag(maximum, largest)
        return b.fcompare("OGE", lag, b.f32_constant(-float(self.threshold)))

    def maximum(self, maximum: Value, largest: Value) -> Value:
        """The new m, given `largest` >= m, the largest score so far: m again if it lags little."""
        return b.select(self._stays(maximum, largest), maximum, largest)

    def alpha(self, maximum: Value, largest: Value) -> Value:
        """alpha: rescales O and l_i when m_i becomes `maximum(maximum, largest)`."""
        alpha = b.exp2(self._lag(maximum, largest))
        return b.select(self._stays(maximum, largest), b.f32_constant(1.0), alpha)

    def offset(self, maximum: Value) -> Value:
        """bias - m c, the addend in the exponent S c + (bias - m c)."""
        product = b.fmul(self.reference(maximum), self.scale_log2)
        return b.fsub(self._bias(), product) if self.exponent_bias else b.fneg(product)

    def exact(self, scores: Value, offset: Value, maximum: Value) -> tuple[Value, Value]:
        """Scores and offsets to use in place of S and `offset`, so that exponents are exact at any
        m.

        In rows where m c is large they are S - m and the bias. Other rows keep theirs, so that a
        row's weights do not depend on the rows next to it.
        """

        def base(o: Value, m: Value) -> Value:
            return b.select(is_large(o), self.reference(m), b.f32_constant(0.0))

        columns = ws.FragmentType(scores.type).shape[1]
        bases = b.broadcast(b.map_elements(base, offset, maximum), columns)
        offsets = b.map_elements(lambda o: b.select(is_large(o), self._bias(), o), offset)
        return b.map_elements(b.fsub, scores, bases), offsets

    def of_logit(self, logit: Value, maximum: Value) -> Value:
        """The weight of a key with an unscaled logit: 2^(logit log2(e) - m c + bias)."""
        reference = self.reference(maximum)
        if self.scale is None:
            distance = b.fsub(logit, reference)
        else:
            distance = b.fma(b.fneg(reference), self.scale, logit)
        return b.exp2(b.fma(distance, b.f32_constant(LOG2E), self._bias()))

    def lse(self, maximum: Value, total: Value) -> Value:
        """ln of the sum of e^(scale S): m scale + ln l; -inf without a key."""
        if self.scale is None:
            return b.fadd(maximum, self._ln(total))
        return b.fma(maximum, self.scale, self._ln(total))

    def lse_high(self, maximum: Value, total: Value) -> Value:
        """The high term of an LSE in two terms: m scale, rounded; -inf without a key."""
        empty = b.fcompare("OEQ", total, b.f32_constant(0.0))
        return b.select(empty, b.f32_constant(-math.inf), self._natural(maximum))

    def lse_low(self, maximum: Value, total: Value) -> Value:
        """The low term: ln l plus the rounding error of the first one; 0 without a key."""
        zero = b.f32_constant(0.0)
        low = self._ln(total)
        if self.scale is not None:
            left_off = b.fma(maximum, self.scale, b.fneg(self._natural(maximum)))
            low = b.fadd(low, left_off)
        return b.select(b.fcompare("OEQ", total, zero), zero, low)

    def _natural(self, maximum: Value) -> Value:
        """m scale, rounded."""
        return maximum if self.scale is None else b.fmul(maximum, self.scale)

    def _ln(self, total: Value) -> Value:
        """ln of the sum without its bias: (log2 l - bias) ln 2."""
        log2 = b.log2(total)
        if self.exponent_bias:
            log2 = b.fsub(log2, self._bias())
        return b.fmul(log2, b.f32_constant(LN2))

    def _bias(self) -> Value:
        return b.f32_constant(float(self.exponent_bias))


def is_large(offset: Value) -> Value:
    """i1: whether m c, which is part of `offset`, is so large that f32 rounds it too coarsely."""
    return b.fcompare("OGE", b.fabs(offset), b.f32_constant(LARGE_EXPONENT))
