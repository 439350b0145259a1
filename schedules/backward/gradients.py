"""The tensors of a gradient beside those of the attention that it is of."""

import math
from dataclasses import dataclass, replace

from .. import emit as b
from ..core.problem import Problem, Value
from ..core.tile_rows import TileRows
from ..softmax.row import LOG2E
from ..sources.row_vectors import StoredVector


@dataclass(frozen=True)
class Gradients:
    """The gradients of keys and values.

    Attributes:
      problem: the attention, whose keys stand still and whose queries stream.
      do: memref as of queries, the gradient of O.
      lse, delta: memrefs [batch, heads, sq], or as queries are stored.
      dv: memref as of values; dK is what the problem has for O.
    """

    problem: Problem
    do: Value
    lse: Value
    delta: Value
    dv: Value

    def sides(self) -> tuple[TileRows, TileRows]:
        """The rows of keys with their gradients, and those of values."""
        problem = self.problem
        of_keys = problem.rows
        return of_keys, replace(of_keys, operands=(problem.v,), result=self.dv)

    def exponents(self) -> StoredVector:
        """What is taken from the exponent of each row, in units of log2: its LSE.

        +inf past the end of a sequence, so that its weights are 0, and 0 where a row sees no key,
        whose scores are all -inf.
        """

        def made(lse: Value) -> Value:
            is_empty = b.fcompare("OEQ", lse, b.f32_constant(-math.inf))
            return b.select(is_empty, b.f32_constant(0.0), b.fmul(lse, b.f32_constant(LOG2E)))

        return StoredVector(self.problem, self.lse, math.inf, made)

    def deltas(self) -> StoredVector:
        """What is taken from the gradient of each weight of a row."""
        return StoredVector(self.problem, self.delta, 0.0, lambda delta: delta)
