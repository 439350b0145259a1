"""`attn.scaled`: an operand of narrow elements with factors that bring it to its real size."""

from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.storage import ViewType, logical_type, stored_type, view_type


class ScaledOp(AttnDialect.Operation, name="scaled", traits=[Pure]):
    """Every element times the factor of its sequence and its key-value head.

    The factors are those of a quantisation: greater than 0 and finite, which nobody checks here.

    Results:
      view: logically and in storage as `source`.

    Operands:
      source: [batch, sequence, heads, columns], a tensor or a view. Heads of queries have the
        factor of the key-value head that they read.
      factors: [batch, kv_heads], f32; an extent of 1 stands for all sequences, or all heads.

    Memory effects: none. Hardware: any.

    Example:
      %keys = "attn.scaled"(%k, %factors)
        : (tensor<?x?x4x128xf8E4M3FN>, tensor<?x?xf32>)
          -> !attn.view<tensor<?x?x4x128xf8E4M3FN>, tensor<?x?x4x128xf8E4M3FN>>
    """

    source: ext.Operand[Any]
    factors: ext.Operand[Any]
    view: ext.Result[ViewType]

    def verify_invariants(self) -> bool:
        """A source of rank 4, factors of rank 2 in f32, and the view of just that."""
        logical, factors = logical_type(self.source), self.factors.type
        if not isinstance(logical, ir.RankedTensorType) or logical.rank != 4:
            layout = "[batch, sequence, heads, columns]"
            return self._fail(f"source to stand for a tensor {layout}, got {self.source.type}")
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


def make_scaled(source: ir.Value, factors: ir.Value) -> ir.Value:
    """The view of an operand with factors, at the insertion point."""
    kind = view_type(logical_type(source), stored_type(source))
    return ScaledOp(source, factors, kind).view
