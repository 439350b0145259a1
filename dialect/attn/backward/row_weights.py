"""`attn.row_weights`: factors of the probabilities of each query, for gradients."""

from typing import Any

from attn_mlir.dialect._mlir import ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.modifier.parents import parent_misfit
from attn_mlir.dialect.attn.verifier import verified

_RANKS = (2, 3)


class RowWeightsOp(AttnDialect.Operation, name="row_weights"):
    """Multiplies the probabilities of each query of the enclosing operation on gradients:

        p[i, j] = weights[i] e^(score[i, j] - lse[i])
        ds[i, j] = e^(score[i, j] - lse[i]) (weights[i] do[i] . v[j] - delta[i]) slope[i, j]

    A sink takes the other part of a row; `attn.sink_delta` has both numbers of it.

    Operands:
      weights: [batch, heads, sq], f32, or [heads, total] for ragged queries, as the LSE.

    Memory effects: none of its own; it is kept as part of its region. Hardware: any.

    Example: `"attn.row_weights"(%weights) : (tensor<?x16x?xf32>) -> ()`
    """

    weights: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        """Checks the type of the factors and that an `attn` operation encloses it."""
        kind, misfit = self.weights.type, ""
        is_tensor = isinstance(kind, ir.RankedTensorType) and kind.rank in _RANKS
        if not is_tensor or str(kind.element_type) != "f32":
            misfit = (
                f"weights to be a tensor [batch, heads, sq] or [heads, total] of f32, got {kind}"
            )
        return verified(self, misfit or parent_misfit(self))
