"""`attn.keep`: hides scores from within a score modifier."""

from typing import Any

from attn_mlir.dialect._mlir import ext
from attn_mlir.dialect.attn.dialect import AttnDialect


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
        if str(self.condition.type) != "i1":
            self.location.emit_error(
                f"'attn.keep' op expects a condition of type i1, got {self.condition.type}"
            )
            return False
        parent = self.operation.parent
        if parent is None or not parent.name.startswith("attn."):
            got = "nothing" if parent is None else f"'{parent.name}'"
            self.location.emit_error(
                f"'attn.keep' op expects to be inside an attn operation, is inside {got}"
            )
            return False
        return True
