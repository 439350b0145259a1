"""`attn.scaled`: an operand whose stored elements are multiplied by factors."""

from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.storage import (
    SEQUENCE_RANK,
    ViewType,
    logical_type,
    stored_type,
    view_type,
)

TOKEN_FACTOR_TYPES = ("f32", "f16", "bf16")


class ScaledOp(AttnDialect.Operation, name="scaled", traits=[Pure]):
    """Multiplies every element by the factor of its sequence and key-value head, or of its
    position.

    The factors are those of a quantisation: greater than 0 and finite, which is not checked.

    Results:
      view: same logical and stored type as `source`.

    Operands:
      source: [batch, sequence, heads, columns], a tensor or a view. A query head has the factor of
        the key-value head that it reads.
      factors: [batch, kv_heads], f32; an extent of 1 stands for all sequences, or all heads. Or of
        positions, [batch, sequence, kv_heads or 1, groups], f32, f16 or bf16, a tensor or a view:
        element c of a row has factor c / (columns / groups), rounded down. Factors in pages
        outside the pool are 0; those behind a sequence's length are not used.

    Memory effects: none. Hardware: any.

    Example:
      %keys = "attn.scaled"(%k, %factors)
        : (tensor<?x?x4x128xf8E4M3FN>, tensor<?x?xf32>)
          -> !attn.view<tensor<?x?x4x128xf8E4M3FN>, tensor<?x?x4x128xf8E4M3FN>>
    """

    source: ext.Operand[Any]
    factors: ext.Operand[Any]
    view: ext.Result[ViewType]

    @property
    def is_per_position(self) -> bool:
        """Whether every position has factors of its own."""
        return logical_type(self.factors).rank == SEQUENCE_RANK

    @property
    def groups(self) -> int:
        """Number of factors of a position and head."""
        return logical_type(self.factors).shape[3] if self.is_per_position else 1

    def verify_invariants(self) -> bool:
        """Checks a source of rank 4, its factors, and the type of the view."""
        logical, factors = logical_type(self.source), logical_type(self.factors)
        if not isinstance(logical, ir.RankedTensorType) or logical.rank != SEQUENCE_RANK:
            layout = "[batch, sequence, heads, columns]"
            return self._fail(f"source to stand for a tensor {layout}, got {self.source.type}")
        if isinstance(factors, ir.RankedTensorType) and factors.rank == SEQUENCE_RANK:
            if misfit := _misfit(logical, factors):
                return self._fail(f"{misfit}, got {factors}")
        else:
            is_table = isinstance(factors, ir.RankedTensorType) and factors.rank == 2
            if not is_table or str(factors.element_type) != "f32":
                return self._fail(f"factors to be a tensor [batch, kv_heads] of f32, got {factors}")
        expected = view_type(logical, stored_type(self.source))
        if self.view.type != expected:
            return self._fail(f"a result of type {expected}, got {self.view.type}")
        return True

    def _fail(self, message: str) -> bool:
        self.location.emit_error(f"'attn.scaled' op expects {message}")
        return False


def _misfit(logical: Any, factors: Any) -> str:
    """What is wrong with the type of factors [batch, sequence, kv_heads, groups]; "" if nothing."""
    if str(factors.element_type) not in TOKEN_FACTOR_TYPES:
        return f"factors of positions of type {', '.join(TOKEN_FACTOR_TYPES)}"
    if any(kind.is_dynamic_dim(dim) for kind in (logical, factors) for dim in (2, 3)):
        return "static heads and groups of factors of positions"
    (heads, columns), (own, groups) = list(logical.shape)[2:], list(factors.shape)[2:]
    if own not in (1, heads) or groups < 1 or columns % groups:
        return f"factors of {heads} heads or 1, in groups that divide {columns} columns"
    return ""


def make_scaled(source: ir.Value, factors: ir.Value) -> ir.Value:
    """The view of an operand with factors, at the insertion point."""
    kind = view_type(logical_type(source), stored_type(source))
    return ScaledOp(source, factors, kind).view
