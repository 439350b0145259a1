"""Operands that are not stored as dense tensors: `!attn.view`, and the operations that make views.

A view is logically one tensor and is stored as another. `attn.mha` computes on the logical tensor;
from the operations that made the view, the schedule finds where its elements are stored.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attn_mlir.dialect._mlir import I32, Pure, ext, ir
from attn_mlir.dialect.attn.cache import CSR, PAGE_LISTS, SCALE_TABLE, Cache
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.lengths import Lengths

Tensor = Any

COUNTED = ("all", "cached")  # values of `counted`
SEQUENCE_RANK = 4  # [batch, sequence, heads, columns]


def _tensor(parameter: Any) -> Tensor | None:
    """A type's parameter as a ranked tensor type; None if it is none."""
    try:
        return ir.RankedTensorType(ir.TypeAttr(parameter).value)
    except ValueError:
        return None


class ViewType(AttnDialect.Type, name="view"):
    """`!attn.view<tensor<?x?x4x64xbf16>, tensor<?x4x64xbf16>>`:
    the logical and the stored tensor.
    """

    logical_type: Any
    stored_type: Any

    @property
    def logical(self) -> Tensor:
        """The logical tensor."""
        return _tensor(self.params[0])

    @property
    def stored(self) -> Tensor:
        """The stored tensor, which has the elements."""
        return _tensor(self.params[1])

    def misfit(self) -> str:
        """The error in the parameters; see `_guard`."""
        if self.logical is None or self.stored is None:
            return "a view to stand for a ranked tensor and to lie in one"
        return ""


def view_type(logical: Tensor, stored: Tensor) -> ViewType:
    """The type of a view, from two ranked tensor types."""
    with logical.context:
        return ViewType.get(ir.TypeAttr.get(logical), ir.TypeAttr.get(stored))


def logical_type(value: Any) -> Any:
    """The logical type of an operand: a view's logical tensor, else its type."""
    return value.type.logical if isinstance(value.type, ViewType) else value.type


def stored_type(value: Any) -> Any:
    """The stored type of an operand: a view's stored tensor, else its type."""
    return value.type.stored if isinstance(value.type, ViewType) else value.type


def is_of_latent_rows(value: Any) -> bool:
    """Whether an operand is the view of an `attn.latent_rows`."""
    owner = value.owner
    return isinstance(owner, ir.OpView) and owner.operation.name == "attn.latent_rows"


def _fail(op: Any, message: str) -> bool:
    op.location.emit_error(f"'{op.OPERATION_NAME}' op expects {message}")
    return False


def _is_i32(kind: Any, rank: int = 1) -> bool:
    """Whether a type is a tensor of i32 of this rank."""
    is_tensor = isinstance(kind, ir.RankedTensorType) and kind.rank == rank
    return is_tensor and str(kind.element_type) == "i32"


def _stands_for_sequences(op: Any) -> bool:
    """Whether the source of an operation is [batch, sequence, heads, columns];
    reports it if not.
    """
    logical = logical_type(op.source)
    if isinstance(logical, ir.RankedTensorType) and logical.rank == SEQUENCE_RANK:
        return True
    layout = "[batch, sequence, heads, columns]"
    return _fail(op, f"source to stand for a tensor {layout}, got {op.source.type}")


def _is_list(op: Any, name: str, extent: str) -> bool:
    """Whether an operand is a list of i32; reports it if not."""
    kind = getattr(op, name).type
    return _is_i32(kind) or _fail(op, f"{name} to be a tensor [{extent}] of i32, got {kind}")


def _is_of_type(op: Any, expected: Any) -> bool:
    """Whether the result has the expected type; reports it if not."""
    got = op.view.type
    return got == expected or _fail(op, f"a result of type {expected}, got {got}")


class RaggedOp(AttnDialect.Operation, name="ragged", traits=[Pure]):
    """Sequences of unequal lengths, one after the other in the rows of one tensor.

    Sequence b has the rows offsets[b] to offsets[b + 1] - 1. Offsets that decrease or exceed the
    tensor never make a kernel read or write out of bounds.

    Results:
      view: logically [batch, ?, heads, columns], stored as `rows`.

    Operands:
      rows: [total, heads, columns].
      offsets: [batch + 1], i32: prefix sums of the lengths, from 0.
      longest: i32, an upper bound of the lengths; rows of a sequence beyond it do not exist.

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
        """Rows of rank 3, a list of offsets, and the type of the view."""
        rows = self.rows.type
        if not isinstance(rows, ir.RankedTensorType) or rows.rank != SEQUENCE_RANK - 1:
            return _fail(self, f"rows to be a tensor [total, heads, columns], got {rows}")
        is_list = _is_list(self, "offsets", "batch + 1")
        return is_list and _is_of_type(self, ragged_type(rows))


def ragged_type(rows: Tensor) -> ViewType:
    """The view that `attn.ragged` makes of [total, heads, columns]."""
    dynamic = ir.ShapedType.get_dynamic_size()
    shape = [dynamic, dynamic, *list(rows.shape)[1:]]
    with ir.Location.unknown(rows.context):
        return view_type(ir.RankedTensorType.get(shape, rows.element_type), rows)


class LimitedOp(AttnDialect.Operation, name="limited", traits=[Pure]):
    """Limits sequence b to its first `lengths[b]` positions; the others do not exist.

    Elements behind a length never reach a result, even NaN. A length is clamped to 0 and the
    source's length.

    Results:
      view: same logical and stored type as `source`.

    Operands:
      source: [batch, sequence, heads, columns], a tensor or a view.
      lengths: [batch], i32.

    Attributes:
      counted: `all`, or `cached`: the lengths are those of a cached prefix, without the new tokens;
        sequence b has lengths[b] positions plus as many as it has queries.

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
        """Whether the lengths are those of a cached prefix, without the queries' own positions."""
        return self.counted.value == "cached"

    def verify_invariants(self) -> bool:
        """A source of rank 4, a list of lengths, and the type of the view."""
        if not (_stands_for_sequences(self) and _is_list(self, "lengths", "batch")):
            return False
        if self.counted.value not in COUNTED:
            allowed = " or ".join(COUNTED)
            return _fail(self, f"counted to be {allowed}, got {self.counted.value}")
        return _is_of_type(self, _view_like(self.source))


def _view_like(source: Any) -> ViewType:
    """The type of a view with the logical and stored type of the source."""
    return view_type(logical_type(source), stored_type(source))


class SelectedOp(AttnDialect.Operation, name="selected", traits=[Pure]):
    """Selects sequences: b is sequence indices[b] of the source, a larger cache for example.

    An index outside the source is clamped.

    Results:
      view: as `source`, with the batch of `indices` in its logical type.

    Operands:
      source: [sequences, sequence, heads, columns], a tensor or a view.
      indices: [batch], i32.

    Memory effects: none. Hardware: any.

    Example:
      %keys = "attn.selected"(%k, %batch_idx)
        : (tensor<?x?x4x128xbf16>, tensor<?xi32>)
          -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>
    """

    source: ext.Operand[Any]
    indices: ext.Operand[Any]
    view: ext.Result[ViewType]

    def verify_invariants(self) -> bool:
        """A source of rank 4, a list of indices, and the type of the view."""
        is_list = _stands_for_sequences(self) and _is_list(self, "indices", "batch")
        return is_list and _is_of_type(self, _view_like(self.source))


class TrimmedOp(AttnDialect.Operation, name="trimmed", traits=[Pure]):
    """Removes padding: the first counts[b] positions of sequence b.

    Position 0 is then the first one after them. A count is clamped to 0 and the sequence's length.
    Elements of the padding never reach a result, even NaN.

    Results:
      view: same logical and stored type as `source`.

    Operands:
      source: [batch, sequence, heads, columns], a tensor or a view, but not in pages.
      counts: [batch], i32.

    Memory effects: none. Hardware: any.

    Example:
      %keys = "attn.trimmed"(%k, %leftpad)
        : (tensor<?x?x4x128xbf16>, tensor<?xi32>)
          -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>>
    """

    source: ext.Operand[Any]
    counts: ext.Operand[Any]
    view: ext.Result[ViewType]

    def verify_invariants(self) -> bool:
        """A source of rank 4, a list of counts, and the type of the view."""
        is_list = _stands_for_sequences(self) and _is_list(self, "counts", "batch")
        return is_list and _is_of_type(self, _view_like(self.source))


def paged_type(source: Any) -> ViewType:
    """The view of a pool [pages, page, heads, columns], or of a view of one, as sequences in these
    pages.
    """
    pool, dynamic = logical_type(source), ir.ShapedType.get_dynamic_size()
    shape = [dynamic, dynamic, *list(pool.shape)[2:]]
    with ir.Location.unknown(pool.context):
        logical = ir.RankedTensorType.get(shape, pool.element_type)
        return view_type(logical, stored_type(source))


def _is_pool(op: Any) -> bool:
    """Whether an operation's pool has pages of static size; reports it if not."""
    pool = op.pool.type
    if is_of_latent_rows(op.pool):
        pool = logical_type(op.pool)
    is_pool = isinstance(pool, ir.RankedTensorType) and pool.rank == SEQUENCE_RANK
    if is_pool and not pool.is_dynamic_dim(1) and pool.get_dim_size(1) > 0:
        return True
    layout = "[pages, page, heads, columns] with a static page"
    return _fail(op, f"pool to be a tensor {layout}, got {pool}")


class PagedOp(AttnDialect.Operation, name="paged", traits=[Pure]):
    """Sequences in pages of a pool, listed by the rows of a table.

    Position t of sequence b is position t % page of the page with number table[b, t / page]. The
    number of no page, such as -1 or the number of pages, stands for a page of zeros; entries behind
    a sequence's length are not used.

    Results:
      view: logically [batch, columns of the table x page, heads, columns], stored as `pool`.

    Operands:
      pool: [pages, page, heads, columns], or such a view of `attn.latent_rows`; the page is static.
      table: [batch, columns], i32.

    Memory effects: none. Hardware: any.

    Example:
      %keys = "attn.paged"(%pool, %table)
        : (tensor<?x64x4x128xbf16>, tensor<?x?xi32>)
          -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x64x4x128xbf16>>
    """

    pool: ext.Operand[Any]
    table: ext.Operand[Any]
    view: ext.Result[ViewType]

    def verify_invariants(self) -> bool:
        """A pool of pages, a table, and the type of the view."""
        if not _is_pool(self):
            return False
        table = self.table.type
        if not _is_i32(table, 2):
            return _fail(self, f"table to be a tensor [batch, columns] of i32, got {table}")
        return _is_of_type(self, paged_type(self.pool))


class PagedCsrOp(AttnDialect.Operation, name="paged_csr", traits=[Pure]):
    """Sequences in pages of a pool, listed in compressed rows (CSR).

    Sequence b has the n pages indices[offsets[b]], ..., indices[offsets[b + 1] - 1], and (n - 1) x
    page + last[b] positions, or 0 if n is 0. Offsets and `last` are clamped; page numbers are as in
    `attn.paged`.

    Results:
      view: logically [batch, ?, heads, columns], stored as `pool`.

    Operands:
      pool: [pages, page, heads, columns], or such a view of `attn.latent_rows`; the page is static.
      offsets: [batch + 1], i32: prefix sums of the numbers of pages, from 0.
      indices: [pages of all sequences], i32.
      last: [batch], i32: positions in the last page, from 1 to page.

    Memory effects: none. Hardware: any.

    Example:
      %keys = "attn.paged_csr"(%pool, %indptr, %indices, %last)
        : (tensor<?x64x4x128xbf16>, tensor<?xi32>, tensor<?xi32>, tensor<?xi32>)
          -> !attn.view<tensor<?x?x4x128xbf16>, tensor<?x64x4x128xbf16>>
    """

    pool: ext.Operand[Any]
    offsets: ext.Operand[Any]
    indices: ext.Operand[Any]
    last: ext.Operand[Any]
    view: ext.Result[ViewType]

    def verify_invariants(self) -> bool:
        """A pool of pages, three lists, and the type of the view."""
        lists = {"offsets": "batch + 1", "indices": "pages", "last": "batch"}
        is_list = _is_pool(self) and all(_is_list(self, *item) for item in lists.items())
        return is_list and _is_of_type(self, paged_type(self.pool))


class GatheredOp(AttnDialect.Operation, name="gathered", traits=[Pure]):
    """Rows that lists name, for each query a list of its own.

    For query i of sequence b position j is row indices[b, i, j] if j < lengths[b, i] and there is
    such a row; else a row of zeros, which the operation that reads the view has to hide
    (`attn.keep`). Rows that no such entry names are not read.

    Results:
      view: logically [batch, topk, 1, columns], stored as `rows`.

    Operands:
      rows: [rows, columns].
      indices: [batch, sq, topk], i32.
      lengths: none, or [batch, sq], i32; all of topk without.

    Memory effects: none. Hardware: any.

    Example:
      %keys = "attn.gathered"(%rows, %indices, %lengths)
        {operandSegmentSizes = array<i32: 1, 1, 1>}
        : (tensor<?x576xbf16>, tensor<?x?x?xi32>, tensor<?x?xi32>)
          -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x576xbf16>>
    """

    rows: ext.Operand[Any]
    indices: ext.Operand[Any]
    lengths: Sequence[ext.Operand[Any]]
    view: ext.Result[ViewType]

    def verify_invariants(self) -> bool:
        """Rows of rank 2, lists and at most one tensor of lengths, and the type of the view."""
        rows = self.rows.type
        if not isinstance(rows, ir.RankedTensorType) or rows.rank != SEQUENCE_RANK - 2:
            return _fail(self, f"rows to be a tensor [rows, columns], got {rows}")
        if (count := len(self.lengths)) > 1:
            return _fail(self, f"at most one tensor as lengths, got {count}")
        lists = {"[batch, sq, topk]": [self.indices], "[batch, sq]": self.lengths}
        for axes, values in lists.items():
            for value in values:
                if not _is_i32(value.type, axes.count(",") + 1):
                    return _fail(self, f"lists to be tensors {axes} of i32, got {value.type}")
        return _is_of_type(self, gathered_type(rows))


def gathered_type(rows: Tensor) -> ViewType:
    """The view that `attn.gathered` makes of [rows, columns]."""
    dynamic = ir.ShapedType.get_dynamic_size()
    with ir.Location.unknown(rows.context):
        kind = ir.RankedTensorType.get([dynamic, dynamic, 1, rows.shape[1]], rows.element_type)
        return view_type(kind, rows)


STORAGE_OPERATIONS = (
    RaggedOp,
    LimitedOp,
    SelectedOp,
    TrimmedOp,
    PagedOp,
    PagedCsrOp,
    GatheredOp,
)


def views_of(
    lengths: Lengths,
    cache: Cache | None,
    operands: tuple[Any, Any, Any],
    indices: Mapping[str, Any],
) -> list[Any]:
    """Builds the views of q, k and v by the arrays with their places and lengths.

    Args:
      lengths: which arrays give lengths.
      cache: how k and v are stored, if they are a cache.
      operands: q, k and v as they are stored.
      indices: values, by name, of the arrays and scalars of `lengths` and `cache`; may have others.
    """
    views: list[Any] = []
    for operand, of_keys in zip(operands, (False, True, True), strict=True):
        view = operand
        if of_keys and cache is not None:
            view = _found(view, cache, indices, of_values=len(views) > 1)
        view = sequences_view(view, lengths, indices, of_keys=of_keys)
        if of_keys and cache is not None and cache.padded:
            view = TrimmedOp(view, indices["leftpad"], _view_like(view)).view
        views.append(view)
    return views


def sequences_view(
    operand: Any, lengths: Lengths, indices: Mapping[str, Any], *, of_keys: bool
) -> Any:
    """An operand with what arrays tell of the lengths of its sequences, at the insertion point.

    Args:
      lengths, indices: as of `views_of`.
      of_keys: whether it holds keys or values, not queries.
    """
    view, side = operand, "k" if of_keys else "q"
    if lengths.ragged_k if of_keys else lengths.ragged_q:
        offsets, longest = indices[f"cu_seqlens_{side}"], indices[f"max_seqlen_{side}"]
        view = RaggedOp(view, offsets, longest, ragged_type(view.type)).view
    if lengths.used_k if of_keys else lengths.used_q:
        view = _limited(view, indices[f"seqused_{side}"], counted="all")
    if of_keys and lengths.cached_k:
        view = _limited(view, indices["cache_seqlens"], counted="cached")
    return view


def cache_views(
    cache: Cache, lengths: str, caches: Sequence[Any], indices: Mapping[str, Any]
) -> list[Any]:
    """Builds the views of a cache's k and v by the arrays with their places and lengths.

    Args:
      lengths: the array with the lengths, `seqused_k` or `cache_seqlens`; empty if there is none.
      caches: k and v as they are stored, or one array that holds both.
      indices: values of the arrays, by name; may have others.
    """
    views: list[Any] = []
    for view in caches:
        view = _found(view, cache, indices, of_values=len(views) > 0)
        if lengths:
            counted = "all" if lengths == "seqused_k" else "cached"
            view = _limited(view, indices[lengths], counted=counted)
        if cache.padded:
            view = TrimmedOp(view, indices["leftpad"], _view_like(view)).view
        views.append(view)
    return views


def scales_view(scales: Any, cache: Cache, indices: Mapping[str, Any], *, of_values: bool) -> Any:
    """Builds the view of a cache's scales per position, with the sequences of the cache.

    Args:
      scales: as they are stored.
      indices: as in `views_of`.
      of_values: whether they are the scales of v.
    """
    if cache.own_scale_table:
        view = PagedOp(scales, indices[SCALE_TABLE], paged_type(scales)).view
    else:
        view = _found(scales, cache, indices, of_values=of_values)
    if cache.padded:
        view = TrimmedOp(view, indices["leftpad"], _view_like(view)).view
    return view


def _found(source: Any, cache: Cache, indices: Mapping[str, Any], *, of_values: bool) -> Any:
    """The view of a cache's sequences, before their lengths are limited."""
    if cache.page_size:
        kind, lists = paged_type(source), [indices[x] for x in PAGE_LISTS[cache.pages]]
        if cache.pages == CSR:
            return PagedCsrOp(source, *lists, kind).view
        return PagedOp(source, lists[-1 if of_values else 0], kind).view
    if cache.selected:
        return SelectedOp(source, indices["batch_idx"], _view_like(source)).view
    return source


def _limited(source: Any, lengths: Any, *, counted: str) -> Any:
    return LimitedOp(source, lengths, _view_like(source), ir.StringAttr.get(counted)).view
