"""`attn.sum_rows`: sums of numbers of queries, in an order that is always the same."""

from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.shapes import rank_misfit
from attn_mlir.dialect.attn.storage import logical_type
from attn_mlir.dialect.attn.verifier import verified

_ROWS = ("batch", "sq", "heads", "1")
_SUMS = ("batch", "heads")


class SumRowsOp(AttnDialect.Operation, name="sum_rows", traits=[Pure]):
    """Sums up a number of each query, sequence by sequence and head by head.

    Results:
      sums: [batch, heads], f32.

    Operands:
      rows: [batch, sq, heads, 1], f32, a tensor or a view, see `storage`. Numbers of rows for which
        there is no query do not count.

    Memory effects: none. Hardware: any.

    Example:
      %sums = "attn.sum_rows"(%rows) : (tensor<?x?x16x1xf32>) -> tensor<?x16xf32>
    """

    sums: ext.Result[Any]
    rows: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        """Checks ranks, element types and extents."""
        return verified(self, self._misfit())

    def _misfit(self) -> str:
        types = {"rows": logical_type(self.rows), "sums": self.sums.type}
        shown = {"rows": self.rows.type, "sums": self.sums.type}
        if misfit := rank_misfit(types, {"rows": _ROWS, "sums": _SUMS}, shown):
            return misfit
        rows, sums = types.values()
        if str(rows.element_type) != "f32":
            return f"rows elements of type f32, got {rows.element_type}"
        if str(sums.element_type) != "f32":
            return f"sums elements of type f32, got {sums.element_type}"
        batch, _, heads, columns = rows.shape
        dynamic = ir.ShapedType.get_dynamic_size()
        if dynamic in (heads, columns) or columns != 1:
            return f"rows of static heads with one column, got {rows}"
        for name, extent, of_rows in zip(_SUMS, sums.shape, (batch, heads), strict=True):
            if extent != of_rows:
                return f"{name} of sums as in rows, got {sums} and {rows}"
        return ""


def make_sum_rows(rows: ir.Value, sums: ir.Type) -> SumRowsOp:
    """Builds an `attn.sum_rows` at the insertion point.

    Args:
      rows: as `SumRowsOp` says.
      sums: the type of the result.
    """
    return SumRowsOp(sums, rows)
