"""`attn.turns`: an order in which CTAs add to memory, so that gradients have the same bits."""

from typing import Any

from attn_mlir.dialect._mlir import ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.modifier.parents import parent_misfit
from attn_mlir.dialect.attn.verifier import verified

_RANK = 3


class TurnsOp(AttnDialect.Operation, name="turns"):
    """Gives each sum of the enclosing `attn.gradients` a fixed order of its additions.

    Blocks of keys add to a tile of queries in the order of their numbers. Without this operation
    the order, and so the rounding, depends on timing.

    Operands:
      turns: [batch, heads, tiles], i32, a cell for each tile of queries of each head and sequence:
        0 before and after every launch, and of one launch at a time.

    Memory effects: none of its own; it is kept as part of its region. Hardware: any.

    Example: `"attn.turns"(%turns) : (tensor<?x16x?xi32>) -> ()`
    """

    turns: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        """Checks the type of the cells and that an `attn` operation encloses it."""
        kind, misfit = self.turns.type, ""
        is_tensor = isinstance(kind, ir.RankedTensorType) and kind.rank == _RANK
        if not is_tensor or str(kind.element_type) != "i32":
            misfit = f"turns to be a tensor [batch, heads, tiles] of i32, got {kind}"
        return verified(self, misfit or parent_misfit(self))
