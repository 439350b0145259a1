"""The tensors of a gradient beside those of the attention that it is of."""

import math
from dataclasses import dataclass, replace

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, Value
from attn_mlir.schedules.core.tile_rows import TileRows
from attn_mlir.schedules.softmax.row import LOG2E
from attn_mlir.schedules.sources.kv_source import KEYS, OUTPUT_GRADIENTS, QUERIES, VALUES, Operand
from attn_mlir.schedules.sources.row_vectors import StoredVector

Named = tuple[str, Operand, Value]  # name of a ring, operand, memref


@dataclass(frozen=True)
class Gradients:
    """The gradients of what stands still: of keys and values, or of queries.

    In both directions scores are the product of the first operand that stands still with the first
    that streams, and the gradients of weights that of the second ones: S = Q K^T and dP = dO V^T,
    or both transposed.

    Attributes:
      problem: the attention, whose direction says what stands still.
      do: memref as of queries, the gradient of O.
      lse, delta: memrefs [batch, heads, sq], or as queries are stored.
      weights: likewise, factors of the probabilities of each query; None for 1.
      results: dK and dV, or dQ: memrefs as of what they are gradients of.
      dq_accum: memref as of queries, f32, which dQ without the scale is added to; None without.
      turns: memref [batch, heads, tiles] of i32, by which CTAs add in order; None in any order.
    """

    problem: Problem
    do: Value
    lse: Value
    delta: Value
    weights: Value | None
    results: tuple[Value, ...]
    dq_accum: Value | None = None
    turns: Value | None = None

    def operands(self) -> tuple[tuple[Named, Named], tuple[Named, Named]]:
        """The two that stand still, and the two that stream."""
        problem = self.problem
        (queries,) = problem.q
        of_queries: tuple[Named, Named] = (
            ("q", QUERIES, queries),
            ("do", OUTPUT_GRADIENTS, self.do),
        )
        of_keys: tuple[Named, Named] = ("k", KEYS, problem.k), ("v", VALUES, problem.v)
        return problem.direction.ordered(of_queries, of_keys)

    def rows(self) -> tuple[TileRows, TileRows]:
        """The rows of the operands that stand still, each with its gradient if it has one."""
        (_, (_, _, second)), _ = self.operands()
        first = self.problem.rows
        return first, replace(first, operands=(second,), result=self.results[-1])

    def exponents(self) -> StoredVector:
        """The number subtracted from the exponent of each query, in units of log2: its LSE.

        +inf past the end of a sequence, so that its weights are 0, and 0 where a query sees no key,
        whose scores are all -inf.
        """

        def made(lse: Value) -> Value:
            is_empty = b.fcompare("OEQ", lse, b.f32_constant(-math.inf))
            return b.select(is_empty, b.f32_constant(0.0), b.fmul(lse, b.f32_constant(LOG2E)))

        return StoredVector(self.problem, self.lse, math.inf, made)

    def row_weights(self) -> StoredVector | None:
        """The factors of the probabilities of each query."""
        if self.weights is None:
            return None
        return StoredVector(self.problem, self.weights, 0.0, lambda weight: weight)

    def deltas(self) -> StoredVector:
        """The number subtracted from the gradient of each weight of a query."""
        return StoredVector(self.problem, self.delta, 0.0, lambda delta: delta)
