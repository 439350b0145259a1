"""`attn.delta`: a number of each row that its gradients need, from the output and its gradient."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.shapes import Axes, rank_misfit, shape_misfit
from attn_mlir.element_types import WIDE_MLIR

_ROWS: Axes = ("batch", "sq", "heads", "v_head_dim")
_NUMBERS: Axes = ("batch", "heads", "sq")


class DeltaOp(AttnDialect.Operation, name="delta", traits=[Pure]):
    """Computes what is subtracted from the gradient of each weight of a row:

        delta[i] = sum_c o[i, c] x do[i, c] - dlse[i]

    A row that sees no key, whose LSE is -inf, has a delta of 0, whatever dlse is.

    Results:
      delta: [batch, heads, sq], f32.

    Operands:
      o: [batch, sq, heads, v_head_dim], bf16 or f16: the output of attention.
      do: as o: the gradient of the output.
      lse: [batch, heads, sq], f32: as `attn.mha` returns it.
      dlse: none, or as lse: the gradient of the LSE.

    Memory effects: none. Hardware: any.

    Example:
      %delta = "attn.delta"(%o, %do, %lse) {operandSegmentSizes = array<i32: 1, 1, 1, 0>}
        : (tensor<?x?x16x128xbf16>, tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>)
          -> tensor<?x16x?xf32>
    """

    delta: ext.Result[Any]
    o: ext.Operand[Any]
    do: ext.Operand[Any]
    lse: ext.Operand[Any]
    dlse: Sequence[ext.Operand[Any]]

    def verify_invariants(self) -> bool:
        """Checks ranks, element types and the agreement of the shapes."""
        misfit = f"at most one tensor as dlse, got {len(self.dlse)}" if len(self.dlse) > 1 else ""
        if misfit := misfit or self._misfit():
            self.location.emit_error(f"'{self.OPERATION_NAME}' op expects {misfit}")
        return not misfit

    def _misfit(self) -> str:
        values = {"o": self.o, "do": self.do, "lse": self.lse, "delta": self.delta}
        values |= dict(zip(("dlse",), self.dlse, strict=False))
        types = {name: value.type for name, value in values.items()}
        axes = {name: _ROWS if name in ("o", "do") else _NUMBERS for name in types}
        if misfit := rank_misfit(types, axes, types):
            return misfit
        element = str(self.o.type.element_type)
        if element not in WIDE_MLIR:
            return f"o elements of type {', '.join(WIDE_MLIR)}, got {element}"
        for name, kind in types.items():
            wanted = element if axes[name] is _ROWS else "f32"
            if str(kind.element_type) != wanted:
                return f"{name} elements of type {wanted}, got {kind.element_type}"
        return shape_misfit(types, axes, ("heads", "v_head_dim"))


def make_delta(o: ir.Value, do: ir.Value, lse: ir.Value, *dlse: ir.Value) -> DeltaOp:
    """Builds an `attn.delta` at the insertion point; operands as `DeltaOp` says."""
    return DeltaOp(lse.type, o, do, lse, list(dlse))
