"""`attn.tile_counter`, the memory from which the CTAs of a kernel draw their work tiles."""

from typing import Any

from attn_mlir.dialect._mlir import ext
from attn_mlir.dialect.attn.dialect import AttnDialect


class TileCounterOp(AttnDialect.Operation, name="tile_counter"):
    """Says where the CTAs of the enclosing attention operation draw their work tiles from.

    The results do not depend on it. A schedule whose tile order is `counter` needs one.

    Operands:
      counter: [1], i32: 0 before and after every launch, and of one launch at a time.

    Memory effects: none of its own; it is kept as part of its region. Hardware: any.

    Example:
      "attn.tile_counter"(%counter) : (tensor<1xi32>) -> ()
    """

    counter: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        """Checks the counter's type, and that an `attn` operation encloses it."""
        if str(self.counter.type) != "tensor<1xi32>":
            return self._fail(f"a counter of type tensor<1xi32>, got {self.counter.type}")
        parent = self.operation.parent
        if parent is None or not parent.name.startswith("attn."):
            got = "nothing" if parent is None else f"'{parent.name}'"
            return self._fail(f"to be inside an attn operation, is inside {got}")
        return True

    def _fail(self, message: str) -> bool:
        self.location.emit_error(f"'{self.OPERATION_NAME}' op expects {message}")
        return False
