"""`attn.columns`: some columns of the rows of an operand."""

from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.storage import (
    SEQUENCE_RANK,
    ViewType,
    logical_type,
    stored_type,
    view_type,
)


class ColumnsOp(AttnDialect.Operation, name="columns", traits=[Pure]):
    """Columns `first`, `first` + 1, ... of every row: as many as the result has.

    So that what several operands read may lie side by side in the rows of one cache.

    Results:
      view: logically [batch, sequence, heads, fewer columns], stored as `source`.

    Operands:
      source: [batch, sequence, heads, columns], a tensor or a view; the columns are static.

    Attributes:
      first: the first column that is left.

    Memory effects: none. Hardware: any.

    Example:
      %rope = "attn.columns"(%cache) {first = 512 : i64}
        : (tensor<?x?x1x576xbf16>)
          -> !attn.view<tensor<?x?x1x64xbf16>, tensor<?x?x1x576xbf16>>
    """

    source: ext.Operand[Any]
    view: ext.Result[ViewType]
    first: ir.IntegerAttr

    @property
    def count(self) -> int:
        """Columns that are left."""
        return logical_type(self.view).shape[-1]

    def verify_invariants(self) -> bool:
        """Checks that the source has rank 4 and all columns of the view."""
        source, got = logical_type(self.source), logical_type(self.view)
        if not isinstance(source, ir.RankedTensorType) or source.rank != SEQUENCE_RANK:
            layout = "[batch, sequence, heads, columns]"
            return self._fail(f"source to stand for a tensor {layout}, got {self.source.type}")
        if source.is_dynamic_dim(SEQUENCE_RANK - 1):
            return self._fail(f"static columns of source, got {source}")
        is_fit = isinstance(got, ir.RankedTensorType) and got.rank == SEQUENCE_RANK
        if not is_fit or got.is_dynamic_dim(SEQUENCE_RANK - 1) or not self.count:
            return self._fail(f"a result of static columns, got {self.view.type}")
        if self.view.type != (expected := columns_type(self.source, self.count)):
            return self._fail(f"a result of type {expected}, got {self.view.type}")
        first, columns = self.first.value, source.shape[-1]
        if not 0 <= first <= columns - self.count:
            return self._fail(f"columns within 0..{columns}, got {first}..{first + self.count}")
        return True

    def _fail(self, message: str) -> bool:
        self.location.emit_error(f"'attn.columns' op expects {message}")
        return False


def columns_type(source: ir.Value, count: int) -> ViewType:
    """The type of the view that `attn.columns` makes of an operand:
    its shape with `count` columns.
    """
    logical = logical_type(source)
    shape = [*list(logical.shape)[:-1], count]
    with ir.Location.unknown(logical.context):
        kind = ir.RankedTensorType.get(shape, logical.element_type)
    return view_type(kind, stored_type(source))


def make_columns(source: ir.Value, first: int, count: int) -> ir.Value:
    """The view of some columns of an operand, at the insertion point."""
    number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), first)
    return ColumnsOp(source, columns_type(source, count), number).view
