"""`attn.keep`: hides scores from within a score modifier."""

from typing import Any

from attn_mlir.dialect._mlir import ext
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.modifier.parents import parent_misfit
from attn_mlir.dialect.attn.verifier import verified


class KeepOp(AttnDialect.Operation, name="keep"):
    """Hides the score that is being modified, unless the condition holds; of several, all must
    hold.

    The mask of the operation applies as well; unlike a condition, it has closed forms for whole
    tiles.

    Operands:
      condition: i1.

    Memory effects: none of its own; it is kept as part of its region. Hardware: any.

    Example: `"attn.keep"(%same_document) : (i1) -> ()`
    """

    condition: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        """Checks the type of the condition and that an `attn` operation encloses it."""
        kind = self.condition.type
        misfit = "" if str(kind) == "i1" else f"a condition of type i1, got {kind}"
        return verified(self, misfit or parent_misfit(self))
