"""`attn.mla_decode`: latent attention after absorption, of a few queries over a latent cache."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.attributes import attr_to_mask, mask_misfit, mask_to_attr
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.join import memory_misfit
from attn_mlir.dialect.attn.latent.columns import LATENT_COLUMNS, ROW_COLUMNS
from attn_mlir.dialect.attn.latent.formats import LatentFormat
from attn_mlir.dialect.attn.latent.rows import LatentRowsOp, emit_latent_rows
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.dialect.attn.masks import Mask, NullMask
from attn_mlir.dialect.attn.mha import LSE_TERMS, PARTIAL, SCHEDULE
from attn_mlir.dialect.attn.shapes import Axes, rank_misfit, shape_misfit
from attn_mlir.dialect.attn.storage import cache_views, logical_type
from attn_mlir.dialect.attn.verifier import scale_misfit, verified
from attn_mlir.dialect.attn.workspace import WORKSPACE

ELEMENT_TYPES = ("bf16", "f16")
HEAD_DIMS = (ROW_COLUMNS, LATENT_COLUMNS)  # with rotated columns behind the latent ones, or without

_AXES: dict[str, Axes] = {
    "q": ("batch", "sq", "heads", "head_dim"),
    "kv": ("kv batch", "sk", "one head", "head_dim"),
    "indices": ("batch", "sq", "topk"),
    "topk_length": ("batch", "sq"),
    "sinks": ("heads",),
    "o": ("batch", "sq", "heads", "v_head_dim"),
    "lse": ("batch", "heads", "sq"),
}
_LISTED: dict[str, Axes] = {"kv": ("rows", "head_dim")}
_PARTIAL: dict[str, Axes] = {
    "o": ("splits x batch", "sq", "heads", "v_head_dim"),
    "lse": ("terms", "splits x batch", "heads", "sq"),
}
_OPTIONAL = MappingProxyType({"indices": "i32", "topk_length": "i32", "sinks": "f32"})
_MEMORY = ("sums", "extremes", "arrived")
_STATIC_AXES = ("heads", "one head", "head_dim", "v_head_dim")


class MlaDecodeOp(AttnDialect.Operation, name="mla_decode", traits=[Pure]):
    """Attention of a few queries over the rows of a latent cache, which all heads read.

    A row is a key, and its first 512 columns are the value: the projections of keys and values are
    absorbed by those of queries and outputs. For a query i of head h

        s[j] = scale q[i, h] . kv[j]     of the rows j of its sequence that the mask shows
        o[i, h] = sum_j e^s[j] kv[j, :512] / (sum_j e^s[j] + e^sinks[h])

    With `indices` the rows are instead those that the query's list names: entry n counts if
    n < topk_length[b, i] and 0 <= indices[b, i, n] < rows. Rows that no entry names that counts are
    not looked at; they may hold NaN.

    Results:
      o: [batch, sq, heads, 512], of q's type. 0 for a query without a key.
      lse: [batch, heads, sq], f32: natural logarithm of the sum of the exponentials, without the
        sink's; -inf for a query without a key.

    Operands:
      q: [batch, sq, heads, head_dim], bf16 or f16; head_dim is 576 or 512, and static like heads.
      kv: [batch, sk, 1, head_dim] of q's type, a tensor or a view (see `storage`): the sequences'
        rows. With `indices` a tensor [rows, head_dim], or the view of `attn.latent_rows` of rows
        stored in
        8 bits: all rows of the cache.
      scale: f32. It is the model's: nothing here follows from head sizes.
      indices: none, or [batch, sq, topk], i32: of a cache in pages page x rows of a page + offset.
      topk_length: none, or [batch, sq], i32, beside indices: how many entries count; taken into
        range.
      sinks: none, or [heads], f32: a logit per head, of a key without a value.
      sums, extremes, arrived: none, or all three operands of `attn.join`: the keys are split into
        parts, which the kernel puts together in this memory.

    Attributes:
      mask: which rows of its sequence a query sees, as of `attn.mha`: with `#attn.causal` the
        queries are the last ones of their sequence. `#attn.null` beside indices.
      attn.partial (optional, unit): as of `attn.mha`: o is [splits x batch, ...] in f32 and lse
        [2, splits x batch, ...], results for parts of the keys (of the entries, with indices),
        which `attn.combine` puts together; without sinks and memory to join parts.
      attn.schedule, attn.config (optional): as of `attn.mha`.

    Memory effects: none, it is a function of its operands. Hardware: any.

    Example:
      func.func @decode(%q: tensor<?x?x64x576xbf16>, %pool: tensor<?x64x1x576xbf16>, %scale: f32,
                        %table: tensor<?x?xi32>, %lengths: tensor<?xi32>)
          -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>) {
        %pages = "attn.paged"(%pool, %table) : (tensor<?x64x1x576xbf16>, tensor<?x?xi32>)
          -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x64x1x576xbf16>>
        %kv = "attn.limited"(%pages, %lengths) {counted = "all"}
          : (!attn.view<tensor<?x?x1x576xbf16>, tensor<?x64x1x576xbf16>>, tensor<?xi32>)
            -> !attn.view<tensor<?x?x1x576xbf16>, tensor<?x64x1x576xbf16>>
        %o, %lse = "attn.mla_decode"(%q, %kv, %scale)
          {mask = #attn.causal, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0, 0>}
          : (tensor<?x?x64x576xbf16>, !attn.view<tensor<?x?x1x576xbf16>, tensor<?x64x1x576xbf16>>,
          f32)
            -> (tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>)
        func.return %o, %lse : tensor<?x?x64x512xbf16>, tensor<?x64x?xf32>
      }
    """

    OPTIONAL_ATTRIBUTES = MappingProxyType({PARTIAL: ir.UnitAttr, SCHEDULE: ir.StringAttr})

    o: ext.Result[Any]
    lse: ext.Result[Any]
    q: ext.Operand[Any]
    kv: ext.Operand[Any]
    scale: ext.Operand[Any]
    indices: Sequence[ext.Operand[Any]]
    topk_length: Sequence[ext.Operand[Any]]
    sinks: Sequence[ext.Operand[Any]]
    sums: Sequence[ext.Operand[Any]]
    extremes: Sequence[ext.Operand[Any]]
    arrived: Sequence[ext.Operand[Any]]
    mask: Any

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.q.type.get_dim_size(2)

    @property
    def head_dim(self) -> int:
        """Columns of a query and of a row of the cache."""
        return self.q.type.get_dim_size(3)

    @property
    def v_head_dim(self) -> int:
        """Columns of a row of the cache that are its value."""
        return LATENT_COLUMNS

    @property
    def element_type(self) -> ir.Type:
        """Element type of the queries and of the cache."""
        return self.q.type.element_type

    @property
    def is_listed(self) -> bool:
        """Whether lists name the rows that a query sees."""
        return len(self.indices) > 0

    @property
    def memory(self) -> list[ir.Value]:
        """The operands in which parts of the keys are put together: three, or none."""
        return [*self.sums, *self.extremes, *self.arrived]

    @property
    def is_partial(self) -> bool:
        """Whether there is a result for each part of the keys."""
        return PARTIAL in self.operation.attributes

    @property
    def mask_rule(self) -> Mask:
        """The mask as an object with formulas."""
        return attr_to_mask(self.mask)

    def verify_invariants(self) -> bool:
        """Checks operands and results, and which of the optional ones go together."""
        misfit = (
            _count_misfit(self)
            or _type_misfit(self)
            or shape_misfit(_types(self), _axes(self), _STATIC_AXES)
            or _size_misfit(self)
            or mask_misfit(self.mask)
            or _option_misfit(self)
        )
        return verified(self, misfit)


def _values(op: MlaDecodeOp) -> dict[str, Any]:
    """The tensors among operands and results, by name; those that it has of the optional ones."""
    return {
        name: value
        for name in _AXES
        for value in (getattr(op, name) if name in _OPTIONAL else [getattr(op, name)])
    }


def _types(op: MlaDecodeOp) -> dict[str, Any]:
    """The logical type of each operand and result."""
    return {name: logical_type(value) for name, value in _values(op).items()}


def _axes(op: MlaDecodeOp) -> dict[str, Axes]:
    """The names of the axes of each."""
    own = _AXES | (_LISTED if op.is_listed else {}) | (_PARTIAL if op.is_partial else {})
    return {name: own[name] for name in _values(op)}


def _count_misfit(op: MlaDecodeOp) -> str:
    """The error in the numbers of optional operands; "" if none."""
    for name in (*_OPTIONAL, *_MEMORY):
        if (count := len(getattr(op, name))) > 1:
            return f"at most one tensor as {name}, got {count}"
    if len(op.memory) not in (0, len(_MEMORY)):
        return f"{', '.join(_MEMORY)} together or none of them"
    return ""


def _type_misfit(op: MlaDecodeOp) -> str:
    """The error in ranks and element types; "" if none."""
    values, types = _values(op), _types(op)
    shown = {name: value.type for name, value in values.items()}
    if misfit := rank_misfit(types, _axes(op), shown):
        return misfit
    if shown["q"] != types["q"]:
        return f"q to be a tensor, got {shown['q']}"
    is_view = shown["kv"] != types["kv"]
    if op.is_listed and is_view and not isinstance(op.kv.owner, LatentRowsOp):
        return f"kv to be a tensor or a view of attn.latent_rows beside indices, got {shown['kv']}"
    element = str(op.element_type)
    if element not in ELEMENT_TYPES:
        return f"q elements of type {', '.join(ELEMENT_TYPES)}, got {element}"
    output = "f32" if op.is_partial else element
    for name, wanted in {"kv": element, "o": output, "lse": "f32", **_OPTIONAL}.items():
        if name in types and str(got := types[name].element_type) != wanted:
            return f"{name} elements of type {wanted}, got {got}"
    return scale_misfit(op) or (memory_misfit(op.memory) if op.memory else "")


def _size_misfit(op: MlaDecodeOp) -> str:
    """The error in static extents; "" if none."""
    if op.head_dim not in HEAD_DIMS:
        return f"head_dim of {' or '.join(map(str, HEAD_DIMS))}, got {op.head_dim}"
    if (columns := op.o.type.get_dim_size(3)) != LATENT_COLUMNS:
        return f"v_head_dim of {LATENT_COLUMNS}, got {columns}"
    if not op.is_listed and (heads := logical_type(op.kv).get_dim_size(2)) != 1:
        return f"kv of 1 head, got {heads}"
    if op.is_partial and op.lse.type.shape[0] != LSE_TERMS:
        return f"partial lse of {LSE_TERMS} terms, got {op.lse.type}"
    return ""


def _option_misfit(op: MlaDecodeOp) -> str:
    """The error in operands that exclude each other; "" if none."""
    if len(op.topk_length) and not op.is_listed:
        return "topk_length beside indices only"
    if op.is_listed and not isinstance(op.mask_rule, NullMask):
        return f"mask #attn.null beside indices, got {op.mask}"
    if op.is_partial and (len(op.sinks) or op.memory):
        other = "sinks, which every part would count" if len(op.sinks) else "memory to join parts"
        return f"attn.partial without {other}"
    return ""


def emit_mla_decode(
    arguments: Mapping[str, ir.Value],
    *,
    mask: Mask,
    lengths: Lengths,
    cache: Cache | None,
    listed: bool,
    partial: bool,
    form: LatentFormat | None = None,
) -> MlaDecodeOp:
    """Builds one `attn.mla_decode` at the insertion point, with storage operations for the cache.

    Args:
      arguments: `q`, `kv` and `scale`; of `indices`, `topk_length`, `sinks`, `WORKSPACE` and the
        index arrays of `lengths` and `cache` those that there are.
      mask: which rows each query sees.
      lengths: what tells how many rows sequences have.
      cache: how these lie; None for rows of a tensor, or those of all sequences with lists.
      listed: whether `indices` are the lists of queries, rather than those of a cache's pages.
      partial: whether there is a result for each part of the keys.
      form: how the rows of `kv` are stored, with lists; None for 16 bits.
    """
    q, kv = arguments["q"], emit_latent_rows(arguments, form)
    if not listed:
        length = next((x for x in ("seqused_k", "cache_seqlens") if x in lengths.tensors), "")
        (kv,) = cache_views(cache or Cache(), length, [kv], arguments)
    batch, rows, heads, _ = q.type.shape
    f32 = ir.F32Type.get()
    terms = [LSE_TERMS] if partial else []
    o = ir.RankedTensorType.get(
        [batch, rows, heads, LATENT_COLUMNS], f32 if partial else q.type.element_type
    )
    lse = ir.RankedTensorType.get([*terms, batch, heads, rows], f32)
    names = (*_OPTIONAL, *WORKSPACE) if listed else ("", "", "sinks", *WORKSPACE)
    optional = [[arguments[name]] if name in arguments else [] for name in names]
    op = MlaDecodeOp(o, lse, q, kv, arguments["scale"], *optional, mask_to_attr(mask))
    if partial:
        op.operation.attributes[PARTIAL] = ir.UnitAttr.get()
    return op
