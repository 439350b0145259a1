"""`attn.sum_parts`: sums along the first dimension, in an order that is always the same."""

from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.shapes import rank_misfit
from attn_mlir.dialect.attn.verifier import verified

SUM_TYPES = ("f32", "bf16", "f16")


class SumPartsOp(AttnDialect.Operation, name="sum_parts", traits=[Pure]):
    """Sums up parts of each element of a tensor:

        sums[j] = sum_i parts[i, j]

    Results:
      sums: [elements], f32, bf16 or f16.

    Operands:
      parts: [parts, elements], f32.

    Memory effects: none. Hardware: any.

    Example:
      %sums = "attn.sum_parts"(%parts) : (tensor<?x?xf32>) -> tensor<?xbf16>
    """

    sums: ext.Result[Any]
    parts: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        """Checks ranks and element types."""
        return verified(self, self._misfit())

    def _misfit(self) -> str:
        types = {"parts": self.parts.type, "sums": self.sums.type}
        axes = {"parts": ("parts", "elements"), "sums": ("elements",)}
        if misfit := rank_misfit(types, axes, types):
            return misfit
        if str(self.parts.type.element_type) != "f32":
            return f"parts elements of type f32, got {self.parts.type.element_type}"
        element = str(self.sums.type.element_type)
        return "" if element in SUM_TYPES else f"sums of type {', '.join(SUM_TYPES)}, got {element}"


def make_sum_parts(parts: ir.Value, sums: ir.Type) -> SumPartsOp:
    """Builds an `attn.sum_parts` at the insertion point.

    Args:
      parts: as `SumPartsOp` says.
      sums: the type of the result.
    """
    return SumPartsOp(sums, parts)
