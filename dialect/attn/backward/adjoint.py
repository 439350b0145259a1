"""`attn.adjoint`: what a score modifier passes on to an element of a tensor that it reads."""

from typing import Any

from attn_mlir.dialect._mlir import ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.parents import parent_misfit


class AdjointOp(AttnDialect.Operation, name="adjoint"):
    """Makes the enclosing `attn.q_gradients` write sums over the keys of each query:

        rows[i] = sum_j p[i, j] (do[i] . v[j] - delta[i]) value[i, j]

    where value is the derivative of the modified score by an element of a tensor, which all scores
    of a head read; `attn.sum_rows` then makes the gradient of that element. A hidden score adds
    nothing, whatever the derivative is.

    Operands:
      value: f32.
      rows: [batch, sq, heads, 1], f32, or [total, heads, 1] for ragged queries: memory that is
        written.

    Memory effects: none of its own; it is kept as part of its region. Hardware: any.

    Example: `"attn.adjoint"(%value, %rows) : (f32, tensor<?x?x16x1xf32>) -> ()`
    """

    AXES = (("total_q", "heads", "1"), ("batch", "sq", "heads", "1"))  # by rank, from 3 on

    value: ext.Operand[Any]
    rows: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        """Checks the types of both, and that an `attn` operation encloses it."""
        kind, misfit = self.rows.type, ""
        ranks = [len(axes) for axes in self.AXES]
        is_tensor = isinstance(kind, ir.RankedTensorType) and kind.rank in ranks
        if str(self.value.type) != "f32":
            misfit = f"a value of type f32, got {self.value.type}"
        elif not is_tensor or str(kind.element_type) != "f32" or kind.shape[-1] != 1:
            misfit = (
                f"rows to be a tensor [batch, sq, heads, 1] or [total, heads, 1] of f32, got {kind}"
            )
        if misfit := misfit or parent_misfit(self):
            self.location.emit_error(f"'attn.adjoint' op expects {misfit}")
        return not misfit
