"""`attn.sink`: a key without a value that every row sees."""

from typing import Any

from attn_mlir.dialect._mlir import ext
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.modifier.parents import parent_misfit
from attn_mlir.dialect.attn.verifier import verified


class SinkOp(AttnDialect.Operation, name="sink"):
    """Adds a key without a value to the enclosing attention operation, seen by all rows.

    e^logit is added to the sum that a row's probabilities are divided by, but not to the LSE. The
    logit may depend on batch, head and q, but not on the score or k.

    Operands:
      logit: f32, natural units, as the modified scores.

    Memory effects: none of its own; it is kept as part of its region. Hardware: any.

    Example: `"attn.sink"(%logit) : (f32) -> ()`
    """

    logit: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        """Checks the type of the logit and that an `attn` operation encloses it."""
        kind = self.logit.type
        misfit = "" if str(kind) == "f32" else f"a logit of type f32, got {kind}"
        return verified(self, misfit or parent_misfit(self))
