"""`attn.yield`: the end of a score modifier."""

from typing import Any

from attn_mlir.dialect._mlir import ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect


class YieldOp(AttnDialect.Operation, name="yield", traits=[ir.IsTerminatorTrait]):
    """Ends the region of an `attn` operation with the value that the region computes.

    Operands:
      value: the modified score, f32.

    Memory effects: none. Hardware: any.

    Example: `"attn.yield"(%score) : (f32) -> ()`
    """

    value: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        """Checks that an `attn` operation encloses the yield."""
        parent = self.operation.parent
        if parent is None or not parent.name.startswith("attn."):
            got = "nothing" if parent is None else f"'{parent.name}'"
            self.location.emit_error(
                f"'attn.yield' op expects to be inside an attn operation, is inside {got}"
            )
            return False
        return True
