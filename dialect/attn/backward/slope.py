"""`attn.slope`: the derivative of a score modifier by the score."""

from typing import Any

from attn_mlir.dialect._mlir import ext
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.modifier.parents import parent_misfit
from attn_mlir.dialect.attn.verifier import verified


class SlopeOp(AttnDialect.Operation, name="slope"):
    """Says what the derivative of the modified score by the score is, for gradients of attention.

    Without one the derivative is 1, as of a bias. Where a score is hidden it does not count,
    whatever it is.

    Operands:
      value: f32.

    Memory effects: none of its own; it is kept as part of its region. Hardware: any.

    Example: `"attn.slope"(%slope) : (f32) -> ()`
    """

    value: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        """Checks the type of the derivative and that an `attn` operation encloses it."""
        kind = self.value.type
        misfit = "" if str(kind) == "f32" else f"a value of type f32, got {kind}"
        return verified(self, misfit or parent_misfit(self))
