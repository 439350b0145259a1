"""The tensors of a gradient beside those of the attention that it is of."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, Value
from attn_mlir.schedules.core.tile_rows import TileRows, columns_of, element_of
from attn_mlir.schedules.softmax.row import LOG2E
from attn_mlir.schedules.sources.kv_source import KEYS, OUTPUT_GRADIENTS, QUERIES, VALUES, Operand
from attn_mlir.schedules.sources.row_vectors import StoredVector

Named = tuple[str, Operand, tuple[Value, ...]]  # name of a ring, operand, memrefs of its columns
PART_NAMES = ("_nope", "_rope")  # suffixes of the rings of an operand that consists of two tensors


class Part(NamedTuple):
    """The gradient of a range of columns of a stationary operand.

    Attributes:
      name: the name of the gradient's ring.
      column: the first of the columns in a tile of the operand.
      columns: number of columns of a tile of the gradient.
      element: element type of the gradient in memory.
      rows: the rows of the operand, with the gradient as their result.
      is_of_scores: whether the operand is Q or K, of which scores are products; else V or dO.
    """

    name: str
    column: int
    columns: int
    element: Any
    rows: TileRows
    is_of_scores: bool

    def of(self, tile: Value) -> Value:
        """These columns of a tile of the operand, or of the streamed tile with equal columns."""
        return b.columns(tile, self.column, self.columns)

    def tile(self, rows: int) -> Any:
        """The type of a tile of it in shared memory."""
        return b.tile([rows, self.columns], self.element, "shared")


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
      results: memrefs of dK and dV, or of dQ; a gradient has one memref for each tensor of its
        operand, and an axis of heads.
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
        of_queries: tuple[Named, Named] = (
            ("q", QUERIES, problem.q),
            ("do", OUTPUT_GRADIENTS, (self.do,)),
        )
        of_keys: tuple[Named, Named] = ("k", KEYS, problem.keys), ("v", VALUES, (problem.v,))
        return problem.direction.ordered(of_queries, of_keys)

    def rows(self) -> tuple[TileRows, TileRows]:
        """The rows of the two stationary operands."""
        (_, (_, _, second)), _ = self.operands()
        first = self.problem.rows
        return first, replace(first, operands=second)

    def parts(self) -> list[Part]:
        """The gradients by parts, those of the first stationary operand first."""
        problem, (named, _) = self.problem, self.operands()
        found, results = list[Part](), iter(self.results)
        widths = problem.columns, problem.v_columns
        operands = zip(named, self.rows(), widths, (True, False), strict=True)
        for (name, _, tensors), rows, width, is_of_scores in operands:
            suffixes, column = PART_NAMES if len(tensors) > 1 else ("",), 0
            for suffix, result in zip(suffixes, results, strict=False):
                columns, made = (
                    columns_of(result) if suffix else width,
                    replace(rows, result=result),
                )
                called, element = f"d{name}{suffix}", element_of(result)
                found.append(Part(called, column, columns, element, made, is_of_scores))
                column += columns
        return found

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
