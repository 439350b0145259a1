"""Operands that are not stored as dense tensors: `!attn.view`, and the operations that make it.

A view is a value that stands for one tensor and lies in memory as another. `attn.mha` computes on
what it stands for; where its parts are is for the schedule to find out, from the operations that
made it.
"""

from collections.abc import Mapping
from typing import Any

from attn_mlir.dialect._mlir import I32, Pure, ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.lengths import Lengths

Tensor = Any

COUNTED = ("all", "cached")  # what lengths may count
SEQUENCE_RANK = 4  # [batch, sequence, heads, columns]


def _tensor(parameter: Any) -> Tensor | None:
    """A type's parameter as a ranked tensor type, else None."""
    try:
        return ir.RankedTensorType(ir.TypeAttr(parameter).value)
    except ValueError:
        return None


class ViewType(AttnDialect.Type, name="view"):
    """`!attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>`: what it stands for, how it lies."""

    logical_type: Any
    stored_type: Any

    @property
    def logical(self) -> Tensor:
        """The tensor that the view stands for."""
        return _tensor(self.params[0])

    @property
    def stored(self) -> Tensor:
        """The tensor that holds its elements."""
        return _tensor(self.params[1])

    def misfit(self) -> str:
        """What is wrong with the parameters; see `_guard`."""
        if self.logical is None or self.stored is None:
            return "a view to stand for a ranked tensor and to lie in one"
        return ""


def view_type(logical: Tensor, stored: Tensor) -> ViewType:
    """The type of a view, from two ranked tensor types."""
    with logical.context:
        return ViewType.get(ir.TypeAttr.get(logical), ir.TypeAttr.get(stored))


def logical_type(value: Any) -> Any:
    """What an operand stands for: a view's logical tensor, else its type itself."""
    return value.type.logical if isinstance(value.type, ViewType) else value.type


def stored_type(value: Any) -> Any:
    """How an operand lies: a view's stored tensor, else its type itself."""
    return value.type.stored if isinstance(value.type, ViewType) else value.type


def _fail(op: Any, message: str) -> bool:
    op.location.emit_error(f"'{op.OPERATION_NAME}' op expects {message}")
    return False


def _is_i32_list(kind: Any) -> bool:
    """Whether a type is a tensor of one dimension of i32."""
    is_list = isinstance(kind, ir.RankedTensorType) and kind.rank == 1
    return is_list and str(kind.element_type) == "i32"


class RaggedOp(AttnDialect.Operation, name="ragged", traits=[Pure]):
    """Sequences of unequal lengths, one after the other in the rows of one tensor.

    Sequence b has the rows from offsets[b] to before offsets[b + 1]; it stands for
    [batch, sequence, heads, columns] with lengths that differ. Offsets that run backwards or out
    of the tensor never make a kernel read or write out of bounds.

    Results:
      view: logically [batch, ?, heads, columns], stored as `rows`.

    Operands:
      rows: [total, heads, columns].
      offsets: [batch + 1], i32: prefix sums of the lengths, from 0.
      longest: i32; no sequence is longer, and rows that it cuts off do not exist.

    Memory effects: none. Hardware: any.

    Example:
      %q = "attn.ragged"(%rows, %offsets, %longest)
        : (tensor<?x16x128xbf16>, tensor<?xi32>, i32)
          -> !attn.view<tensor<?x?x16x128xbf16>, tensor<?x16x128xbf16>>
    """

    rows: ext.Operand[Any]
    offsets: ext.Operand[Any]
    longest: ext.Operand[I32]
    view: ext.Result[ViewType]

    def verify_invariants(self) -> bool:
        """Rows of rank 3, a list of offsets, and the view of just that."""
        rows = self.rows.type
        if not isinstance(rows, ir.RankedTensorType) or rows.rank != SEQUENCE_RANK - 1:
            return _fail(self, f"rows to be a tensor [total, heads, columns], got {rows}")
        if not _is_i32_list(self.offsets.type):
            return _fail(
                self, f"offsets to be a tensor [batch + 1] of i32, got {self.offsets.type}"
            )
        expected = ragged_type(rows)
        if self.view.type != expected:
            return _fail(self, f"a result of type {expected}, got {self.view.type}")
        return True


def ragged_type(rows: Tensor) -> ViewType:
    """The view that `attn.ragged` makes of [total, heads, columns]."""
    dynamic = ir.ShapedType.get_dynamic_size()
    shape = [dynamic, dynamic, *list(rows.shape)[1:]]
    with ir.Location.unknown(rows.context):
        return view_type(ir.RankedTensorType.get(shape, rows.element_type), rows)


class LimitedOp(AttnDialect.Operation, name="limited", traits=[Pure]):
    """The first `lengths[b]` positions of sequence b; the others count as if they did not exist.

    What lies behind them is never let into a result: it may be NaN. A length below 0 or above the
    sequence's own is moved into that range.

    Results:
      view: logically and in storage as `source`.

    Operands:
      source: [batch, sequence, heads, columns], a tensor or a view.
      lengths: [batch], i32.

    Attributes:
      counted: `all`, or `cached`: the lengths are those of a cached prefix and do not count the
        new tokens; sequence b has lengths[b] positions and as many more as it has queries.

    Memory effects: none. Hardware: any.

    Example:
      %cache = "attn.limited"(%k, %lengths) {counted = "all"}
        : (tensor<?x?x4x128xbf16>, tensor<?xi32>)
          -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>
    """

    source: ext.Operand[Any]
    lengths: ext.Operand[Any]
    view: ext.Result[ViewType]
    counted: ir.StringAttr

    @property
    def excludes_queries(self) -> bool:
        """Whether the lengths do not count the queries' own positions."""
        return self.counted.value == "cached"

    def verify_invariants(self) -> bool:
        """A source of rank 4, a list of lengths, and the view of just that."""
        logical = logical_type(self.source)
        if not isinstance(logical, ir.RankedTensorType) or logical.rank != SEQUENCE_RANK:
            layout = "[batch, sequence, heads, columns]"
            return _fail(self, f"source to stand for a tensor {layout}, got {self.source.type}")
        if not _is_i32_list(self.lengths.type):
            return _fail(self, f"lengths to be a tensor [batch] of i32, got {self.lengths.type}")
        if self.counted.value not in COUNTED:
            allowed = " or ".join(COUNTED)
            return _fail(self, f"counted to be {allowed}, got {self.counted.value}")
        expected = view_type(logical, stored_type(self.source))
        if self.view.type != expected:
            return _fail(self, f"a result of type {expected}, got {self.view.type}")
        return True


STORAGE_OPERATIONS = (RaggedOp, LimitedOp)


def views_of(
    lengths: Lengths, operands: tuple[Any, Any, Any], indices: Mapping[str, Any]
) -> list[Any]:
    """q, k and v with the lengths that arrays tell, at the insertion point.

    Args:
      lengths: which arrays there are.
      operands: q, k and v as they are stored.
      indices: values of the arrays and numbers that `lengths` names, by name; may hold others.
    """
    sides = (("q", lengths.ragged_q), ("k", lengths.ragged_k), ("k", lengths.ragged_k))
    views: list[Any] = []
    for operand, (side, is_ragged) in zip(operands, sides, strict=True):
        view = operand
        if is_ragged:
            offsets, longest = indices[f"cu_seqlens_{side}"], indices[f"max_seqlen_{side}"]
            view = RaggedOp(view, offsets, longest, ragged_type(view.type)).view
        if f"seqused_{side}" in indices:
            view = _limited(view, indices[f"seqused_{side}"], counted="all")
        if side == "k" and lengths.cached_k:
            view = _limited(view, indices["cache_seqlens"], counted="cached")
        views.append(view)
    return views


def _limited(source: Any, lengths: Any, *, counted: str) -> Any:
    kind = view_type(logical_type(source), stored_type(source))
    return LimitedOp(source, lengths, kind, ir.StringAttr.get(counted)).view
