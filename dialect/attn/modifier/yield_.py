"""`attn.yield`: the end of a score modifier."""

from typing import Any

from attn_mlir.dialect._mlir import ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.modifier.parents import parent_misfit
from attn_mlir.dialect.attn.verifier import verified


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
        return verified(self, parent_misfit(self))
