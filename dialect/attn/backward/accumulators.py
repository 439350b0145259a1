"""`attn.zero_rows` and `attn.round_rows`: memory that kernels add rows to, before and after it."""

from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.shapes import Axes, rank_misfit, shape_misfit
from attn_mlir.dialect.attn.verifier import scale_misfit, verified
from attn_mlir.element_types import WIDE_MLIR

_ROWS: Axes = ("batch", "sq", "heads", "head_dim")


def _accum_misfit(accum: Any, **others: Any) -> str:
    """The error in the types of accumulators and of tensors of the same shape; "" if none."""
    types = {"accum": accum, **others}
    axes = dict.fromkeys(types, _ROWS)
    if misfit := rank_misfit(types, axes, types):
        return misfit
    if str(accum.element_type) != "f32":
        return f"accum elements of type f32, got {accum.element_type}"
    return shape_misfit(types, axes, ("heads", "head_dim"))


class ZeroRowsOp(AttnDialect.Operation, name="zero_rows", traits=[Pure]):
    """Zeros, which other kernels add to.

    Results:
      accum: [batch, sq, heads, head_dim], f32.

    Memory effects: none. Hardware: any.

    Example:
      %accum = "attn.zero_rows"() : () -> tensor<?x?x16x128xf32>
    """

    accum: ext.Result[Any]

    def verify_invariants(self) -> bool:
        """Checks rank, element type and static extents."""
        return verified(self, _accum_misfit(self.accum.type))


class RoundRowsOp(AttnDialect.Operation, name="round_rows", traits=[Pure]):
    """Multiplies accumulators with a number, and rounds once:

        rounded[i, c] = scale x accum[i, c]

    Results:
      rounded: [batch, sq, heads, head_dim], bf16 or f16.

    Operands:
      accum: as rounded, f32.
      scale: f32.

    Memory effects: none. Hardware: any.

    Example:
      %dq = "attn.round_rows"(%accum, %scale)
        : (tensor<?x?x16x128xf32>, f32) -> tensor<?x?x16x128xbf16>
    """

    rounded: ext.Result[Any]
    accum: ext.Operand[Any]
    scale: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        """Checks ranks, element types and the agreement of the shapes."""
        rounded = self.rounded.type
        misfit = _accum_misfit(self.accum.type, rounded=rounded)
        if not misfit and (element := str(rounded.element_type)) not in WIDE_MLIR:
            misfit = f"rounded elements of type {', '.join(WIDE_MLIR)}, got {element}"
        return verified(self, misfit or scale_misfit(self))


def make_round_rows(accum: ir.Value, scale: ir.Value, element: ir.Type) -> RoundRowsOp:
    """Builds an `attn.round_rows` at the insertion point.

    Args:
      accum, scale: as `RoundRowsOp` says.
      element: the element type of the result.
    """
    return RoundRowsOp(ir.RankedTensorType.get([*accum.type.shape], element), accum, scale)
