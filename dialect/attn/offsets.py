"""`attn.offsets`: the coordinates at which the rows, columns and heads of an operation begin."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import ext
from attn_mlir.dialect.attn.dialect import AttnDialect

_NUMBER, _NUMBERS = "i32", "tensor<?xi32>"


class OffsetsOp(AttnDialect.Operation, name="offsets"):
    """Says where the operands of the enclosing attention operation lie in a longer problem.

    Query i is at position i + q and key j at position j + k, where an offset that is missing is 0.
    With q or k the mask is one over positions: row i has p = i + q, and nothing is aligned at the
    end. The region of scores is given i + q, j + k and h + head in the place of i, j and h; a sink
    is still that of query i and head h.

    Operands:
      q: none or one, i32, or tensor<?xi32> [batch] with an offset for each sequence; at most 2^29
        from 0.
      k: likewise, from 0 on.
      head: none or one, i32.

    Memory effects: none of its own; it is kept as part of its region. Hardware: any.

    Example:
      "attn.offsets"(%q_offset, %k_offset) {operandSegmentSizes = array<i32: 1, 1, 0>}
        : (i32, tensor<?xi32>) -> ()
    """

    q: Sequence[ext.Operand[Any]]
    k: Sequence[ext.Operand[Any]]
    head: Sequence[ext.Operand[Any]]

    def verify_invariants(self) -> bool:
        """Checks the types, and that an `attn.mha` encloses it."""
        groups = {"q": list(self.q), "k": list(self.k), "head": list(self.head)}
        if not any(groups.values()):
            return self._fail("an offset, got none")
        for name, values in groups.items():
            allowed = (_NUMBER,) if name == "head" else (_NUMBER, _NUMBERS)
            if len(values) > 1:
                return self._fail(f"at most one {name}, got {len(values)}")
            for value in values:
                if str(value.type) not in allowed:
                    return self._fail(f"{name} of type {' or '.join(allowed)}, got {value.type}")
        parent = self.operation.parent
        if parent is None or parent.name != "attn.mha":
            got = "nothing" if parent is None else f"'{parent.name}'"
            return self._fail(f"to be inside an attn.mha, is inside {got}")
        return True

    def _fail(self, message: str) -> bool:
        self.location.emit_error(f"'{self.OPERATION_NAME}' op expects {message}")
        return False
