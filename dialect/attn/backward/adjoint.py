"""`attn.adjoint`: what scores pass on to the elements of a tensor that a score modifier reads."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import I32, ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.modifier.parents import parent_misfit
from attn_mlir.dialect.attn.verifier import verified

PER, MODES = ("row", "score"), ("store", "add")


class AdjointOp(AttnDialect.Operation, name="adjoint"):
    """Makes the enclosing gradient write what scores pass on to elements of a tensor:

        part[i, j] = p[i, j] (do[i] . v[j] - delta[i]) value[i, j], and 0 where p is
        target[coords] = part[i, j]                     per score
        target[coords] = sum of part over the other side     per row

    where value is the derivative of the modified score by the element. Rows are queries in
    `attn.q_gradients` and keys in `attn.kv_gradients`, there once for each query head. A score that
    does not exist, or is hidden, writes nothing. `attn.sum_parts` then makes the gradient.

    Operands:
      value: f32.
      target: f32 of any rank from 1 on, dense: memory that is 0 before.
      coords: i32 coordinates, one for each dimension of the target; outside of it they are clamped.
        Per row they depend on batch, head and the position of the row alone.

    Attributes:
      per: "row" or "score".
      mode: "store", or "add" where several rows or scores write to an element: those of one thread
        in the order of their positions, others in any order.

    Memory effects: none of its own; it is kept as part of its region. Hardware: any.

    Example:
      "attn.adjoint"(%value, %target, %b, %i)
        {mode = "store", operandSegmentSizes = array<i32: 1, 1, 2>, per = "row"}
        : (f32, tensor<?x?xf32>, i32, i32) -> ()
    """

    value: ext.Operand[Any]
    target: ext.Operand[Any]
    coords: Sequence[ext.Operand[I32]]
    per: ir.StringAttr
    mode: ir.StringAttr

    @property
    def adds(self) -> bool:
        """Whether several rows or scores are added to an element."""
        return self.mode.value == "add"

    @property
    def is_per_row(self) -> bool:
        """Whether sums of rows are written, not parts of scores."""
        return self.per.value == "row"

    def verify_invariants(self) -> bool:
        """Checks the types and coordinates, and that an `attn` operation encloses it."""
        return verified(self, self._misfit() or parent_misfit(self))

    def _misfit(self) -> str:
        kind = self.target.type
        if str(self.value.type) != "f32":
            return f"a value of type f32, got {self.value.type}"
        is_tensor = isinstance(kind, ir.RankedTensorType) and kind.rank > 0
        if not is_tensor or str(kind.element_type) != "f32":
            return f"target to be a tensor of f32 with dimensions, got {kind}"
        if len(self.coords) != kind.rank:
            return f"{kind.rank} coordinates, got {len(self.coords)}"
        for name, known in (("per", PER), ("mode", MODES)):
            if (got := getattr(self, name).value) not in known:
                return f"{name} of {' or '.join(known)}, got {got}"
        return ""
