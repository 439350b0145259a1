"""`attn.sink`: a key without a value that every row sees."""

from typing import Any

from attn_mlir.dialect._mlir import ext
from attn_mlir.dialect.attn.dialect import AttnDialect


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
        if str(self.logit.type) != "f32":
            self.location.emit_error(
                f"'attn.sink' op expects a logit of type f32, got {self.logit.type}"
            )
            return False
        parent = self.operation.parent
        if parent is None or not parent.name.startswith("attn."):
            got = "nothing" if parent is None else f"'{parent.name}'"
            self.location.emit_error(
                f"'attn.sink' op expects to be inside an attn operation, is inside {got}"
            )
            return False
        return True
