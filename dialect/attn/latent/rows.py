"""`attn.latent_rows`: rows of latent attention that a cache stores in 8 bits, with scales."""

from collections.abc import Mapping, Sequence
from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.latent.formats import LatentFormat
from attn_mlir.dialect.attn.storage import ViewType, view_type

NARROW = "f8E4M3FN"
WIDE = "bf16"
SCALE_TYPES = ("f32", "ui8")
_RANKS = (2, 3, 4)  # rows, rows in pages, pools of pages or sequences
_HEAD = 2  # dimension of a pool


class LatentRowsOp(AttnDialect.Operation, name="latent_rows", traits=[Pure]):
    """Rows whose first columns are stored in 8 bits and multiplied by scales, and the rest in 16
    bits.

    Column c of row r is narrow[r, c] x scales[r, c / group], and from the last narrow one on
    wide[r, ...]. A scale of ui8, e, is 2^(e - 127), and 255 is NaN. Products take operands of 16
    bits: the product with the scale is rounded to bf16, once. With rows in pages row r is at r /
    page, r % page of all the tensors. Pages of one head are a pool, or sequences, as storage
    operations take them.

    Results:
      view: logically [rows, columns of both], or [pages, page, 1, columns of both], bf16; stored as
        `narrow`.

    Operands:
      narrow: [rows, columns], [pages, page, columns] or [pages, page, 1, columns], e4m3; the
        columns are static, and the page of the second.
      scales: none, for 1 everywhere, or [..., n], f32 or ui8, of which the first columns / group,
        rounded up, count.
      wide: none, or [..., columns], bf16.

    Attributes:
      group: columns that share a scale; those of `narrow` where they all do, or there is none.

    Memory effects: none. Hardware: any.

    Example:
      %rows = "attn.latent_rows"(%narrow, %scales, %wide)
        {group = 128 : i64, operandSegmentSizes = array<i32: 1, 1, 1>}
        : (tensor<?x512xf8E4M3FN>, tensor<?x4xf32>, tensor<?x64xbf16>)
          -> !attn.view<tensor<?x576xbf16>, tensor<?x512xf8E4M3FN>>
    """

    narrow: ext.Operand[Any]
    scales: Sequence[ext.Operand[Any]]
    wide: Sequence[ext.Operand[Any]]
    group: ir.IntegerAttr
    view: ext.Result[ViewType]

    @property
    def page(self) -> int:
        """Rows of a page; 0 where rows are not in pages, or of a number that calls tell."""
        kind = self.narrow.type
        is_known = kind.rank > _RANKS[0] and not kind.is_dynamic_dim(1)
        return kind.get_dim_size(1) if is_known else 0

    @property
    def scaled_columns(self) -> int:
        """Columns of a row with scales of f32."""
        kind = self.narrow.type
        has_scales = any(str(x.type.element_type) == "f32" for x in self.scales)
        return kind.get_dim_size(kind.rank - 1) if has_scales else 0

    def verify_invariants(self) -> bool:
        """Element types, equal extents in front of the columns, and enough scales."""
        for name in ("scales", "wide"):
            if (count := len(getattr(self, name))) > 1:
                return self._fail(f"at most one tensor as {name}, got {count}")
        narrow = self.narrow.type
        if not isinstance(narrow, ir.RankedTensorType) or narrow.rank not in _RANKS:
            return self._fail(
                "narrow to be a tensor [rows, columns], [pages, page, columns] or [pages, page, "
                f"1, columns], got {narrow}"
            )
        is_pool = narrow.rank == _RANKS[-1]
        if any(narrow.is_dynamic_dim(axis) for axis in range(2 if is_pool else 1, narrow.rank)):
            return self._fail(f"narrow to have static columns, and a static page, got {narrow}")
        if is_pool and narrow.get_dim_size(_HEAD) != 1:
            return self._fail(f"narrow of 1 head, got {narrow}")
        columns = narrow.get_dim_size(narrow.rank - 1)
        if not 1 <= self.group.value <= columns:
            return self._fail(f"a group of 1 to {columns} columns, got {self.group.value}")
        tensors = [("narrow", self.narrow, (NARROW,), 1)]
        tensors += [
            ("scales", x, SCALE_TYPES, -(-columns // self.group.value)) for x in self.scales
        ]
        tensors += [("wide", x, (WIDE,), 1) for x in self.wide]
        if not all(self._check(*tensor) for tensor in tensors):
            return False
        expected = latent_rows_type(narrow, [x.type for x in self.wide])
        if self.view.type != expected:
            return self._fail(f"a result of type {expected}, got {self.view.type}")
        return True

    def _check(self, name: str, value: Any, elements: Sequence[str], least: int) -> bool:
        """Whether a tensor has these elements, `narrow`'s rows and at least so many columns."""
        kind, narrow = value.type, self.narrow.type
        if not isinstance(kind, ir.RankedTensorType) or str(kind.element_type) not in elements:
            return self._fail(f"{name} to be a tensor of {' or '.join(elements)}, got {kind}")
        if list(kind.shape)[:-1] != list(narrow.shape)[:-1]:
            return self._fail(f"{name} to have the rows of {narrow}, got {kind}")
        if kind.is_dynamic_dim(kind.rank - 1) or kind.get_dim_size(kind.rank - 1) < least:
            return self._fail(f"{name} to have {least} columns at least, got {kind}")
        return True

    def _fail(self, message: str) -> bool:
        self.location.emit_error(f"'{self.OPERATION_NAME}' op expects {message}")
        return False


def latent_rows_type(narrow: Any, wide: Sequence[Any]) -> ViewType:
    """The view of rows: all their columns as bf16, from tensor types."""
    columns = sum(kind.get_dim_size(kind.rank - 1) for kind in (narrow, *wide))
    with ir.Location.unknown(narrow.context):
        element = ir.Type.parse(WIDE)
        rows = [ir.ShapedType.get_dynamic_size()]
        if narrow.rank == _RANKS[-1]:
            rows = list(narrow.shape)[:-1]
        shape = [*rows, columns]
        return view_type(ir.RankedTensorType.get(shape, element), narrow)


def make_latent_rows(
    narrow: Any, scales: Sequence[Any], wide: Sequence[Any], group: int
) -> LatentRowsOp:
    """The operation, at the insertion point; arguments as its operands."""
    kind = latent_rows_type(narrow.type, [x.type for x in wide])
    number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), group)
    return LatentRowsOp(narrow, list(scales), list(wide), number, kind)


def emit_latent_rows(arguments: Mapping[str, ir.Value], form: LatentFormat | None) -> ir.Value:
    """The rows of a latent cache, of `row_operands`: a view of them,
    or `kv` itself without a form.
    """
    if form is None:
        return arguments["kv"]
    scales, wide = (
        [arguments[x]] if x in arguments else list[ir.Value]() for x in ("kv_scale", "kv_rope")
    )
    group = form.scales.group or form.narrow
    return make_latent_rows(arguments["kv"], scales, wide, group).view
