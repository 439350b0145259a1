"""`attn.sparse_mla`: latent attention over keys that a list names for each query."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.latent.columns import LATENT_COLUMNS
from attn_mlir.dialect.attn.mha import OUTPUT_TYPES
from attn_mlir.dialect.attn.storage import logical_type

ELEMENT_TYPES = ("bf16", "f16", "f8E4M3FN")
HEAD_DIMS = (576, 512)  # with 64 rotated columns behind the latent ones, or among them
PAGE_SIZE = "attn.page_size"  # attribute

_LAYOUTS = {
    "q": ("sq", "heads", "head_dim"),
    "kv": ("rows", "head_dim"),
    "indices": ("sq", "topk"),
    "topk_length": ("sq",),
    "sinks": ("heads",),
    "page_table": ("batch", "pages"),
    "batch_of_query": ("sq",),
    "o": ("sq", "heads", "v_head_dim"),
    "lse": ("sq", "heads"),
    "max_logits": ("sq", "heads"),
}
_ELEMENTS = {
    "indices": ("i32",),
    "topk_length": ("i32",),
    "sinks": ("f32",),
    "page_table": ("i32",),
    "batch_of_query": ("i32",),
    "o": OUTPUT_TYPES,
    "lse": ("f32",),
    "max_logits": ("f32",),
}
_OPTIONAL = ("topk_length", "sinks", "page_table", "batch_of_query")


class SparseMlaOp(AttnDialect.Operation, name="sparse_mla", traits=[Pure]):
    """Latent attention of each query over the rows of a cache that its list of indices names.

    All heads of a query see the same rows: a row is the key, and its first 512 columns are the
    value. With j < topk_length and 0 <= indices[t, j] < rows an entry counts, others do not:

        s[t, h, j] = scale q[t, h] . kv[indices[t, j]]     or -inf where the entry does not count
        o[t, h] = sum_j e^s[t, h, j] kv[indices[t, j], :512] / (sum_j e^s[t, h, j] + e^sinks[h])

    Rows of the cache that no entry names are not looked at; they may hold NaN.

    With a table of pages an entry is a position of the query's sequence b: it names the row
    page_table[b, entry / page] x page + entry % page. One whose sequence, page or position there
    is none of does not count.

    Results:
      o: [sq, heads, 512], bf16, f16 or f32. 0 for a query without an entry that counts.
      lse: [sq, heads], f32: natural logarithm of the sum of the exponentials, without the sink's;
        -inf for a query without an entry that counts.
      max_logits: [sq, heads], f32: the largest s; -inf likewise.

    Operands:
      q: [sq, heads, head_dim], bf16, f16 or e4m3; head_dim is 576 or 512, and static like heads.
      kv: [rows, head_dim], of q's type: the cache, of one head. A tensor, or rows stored in 8 bits
        for products of bf16, the view of `attn.latent_rows`. With e4m3 the weights of a row are
        rounded to it as well, times a power of two.
      indices: [sq, topk], i32.
      scale: f32.
      topk_length: none, or [sq], i32: how many entries of each list count; taken into range.
      sinks: none, or [heads], f32: a logit per head, for a key without a value.
      page_table: none, or [batch, pages], i32: the pages of each sequence, of which the cache has
        rows / page.
      batch_of_query: [sq], i32, with a table: the sequence of each query.

    Attributes:
      attn.page_size (with a table): rows of a page.

    Memory effects: none, it is a function of its operands. Hardware: any.

    Example:
      func.func @example(%q: tensor<?x64x576xbf16>, %kv: tensor<?x576xbf16>,
                         %indices: tensor<?x?xi32>, %scale: f32, %sinks: tensor<64xf32>) {
        %o, %lse, %max = "attn.sparse_mla"(%q, %kv, %indices, %scale, %sinks)
          {operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0, 0>}
          : (tensor<?x64x576xbf16>, tensor<?x576xbf16>, tensor<?x?xi32>, f32, tensor<64xf32>)
            -> (tensor<?x64x512xbf16>, tensor<?x64xf32>, tensor<?x64xf32>)
        func.return
      }
    """

    OPTIONAL_ATTRIBUTES = MappingProxyType({PAGE_SIZE: ir.IntegerAttr})

    o: ext.Result[Any]
    lse: ext.Result[Any]
    max_logits: ext.Result[Any]
    q: ext.Operand[Any]
    kv: ext.Operand[Any]
    indices: ext.Operand[Any]
    scale: ext.Operand[Any]
    topk_length: Sequence[ext.Operand[Any]]
    sinks: Sequence[ext.Operand[Any]]
    page_table: Sequence[ext.Operand[Any]]
    batch_of_query: Sequence[ext.Operand[Any]]

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.q.type.get_dim_size(1)

    @property
    def head_dim(self) -> int:
        """Columns of a query and of a row of the cache."""
        return self.q.type.get_dim_size(2)

    @property
    def tensors(self) -> dict[str, Any]:
        """The values that are tensors, by name; those that it has of the optional ones."""
        return {
            name: value
            for name in _LAYOUTS
            for value in (getattr(self, name) if name in _OPTIONAL else [getattr(self, name)])
        }

    @property
    def page_size(self) -> int:
        """Rows of a page; 0 without a table."""
        attributes = self.operation.attributes
        return ir.IntegerAttr(attributes[PAGE_SIZE]).value if PAGE_SIZE in attributes else 0

    def verify_invariants(self) -> bool:
        """Ranks and element types; one extent wherever an axis occurs; head sizes that exist."""
        for name in _OPTIONAL:
            if (count := len(getattr(self, name))) > 1:
                return self._fail(f"at most one tensor as {name}, got {count}")
        if str(self.scale.type) != "f32":
            return self._fail(f"scale of type f32, got {self.scale.type}")
        paging = [len(self.page_table), len(self.batch_of_query), int(PAGE_SIZE in self.attributes)]
        if any(paging) and not all(paging):
            return self._fail(
                f"page_table, batch_of_query and {PAGE_SIZE} together or none of them"
            )
        if PAGE_SIZE in self.attributes and self.page_size < 1:
            return self._fail(f"{PAGE_SIZE} of at least 1, got {self.page_size}")
        return all(self._check_tensor(*item) for item in self.tensors.items()) and self._check()

    def _check_tensor(self, name: str, value: Any) -> bool:
        axes, kind = _LAYOUTS[name], logical_type(value)
        if not isinstance(kind, ir.RankedTensorType) or kind.rank != len(axes):
            return self._fail(f"{name} to be a tensor [{', '.join(axes)}], got {kind}")
        allowed = _ELEMENTS.get(name, ELEMENT_TYPES)
        if str(kind.element_type) not in allowed:
            return self._fail(
                f"{name} elements of type {', '.join(allowed)}, got {kind.element_type}"
            )
        return True

    def _check(self) -> bool:
        known: dict[str, tuple[str, int]] = {}
        for name, value in self.tensors.items():
            for axis, length in zip(_LAYOUTS[name], logical_type(value).shape, strict=True):
                if length == ir.ShapedType.get_dynamic_size():
                    if axis in ("heads", "head_dim", "v_head_dim"):
                        return self._fail(f"{axis} of {name} to be static, got {value.type}")
                    continue
                first, expected = known.setdefault(axis, (name, length))
                if length != expected:
                    return self._fail(
                        f"{axis} of {name} to be {expected} as in {first}, got {length}"
                    )
        elements = [logical_type(x).element_type for x in (self.q, self.kv)]
        if elements[0] != elements[1]:
            return self._fail(f"kv elements of q's type {elements[0]}, got {elements[1]}")
        if self.head_dim not in HEAD_DIMS:
            allowed = " or ".join(map(str, HEAD_DIMS))
            return self._fail(f"head_dim of {allowed}, got {self.head_dim}")
        if (columns := self.o.type.get_dim_size(2)) != LATENT_COLUMNS:
            return self._fail(f"v_head_dim of {LATENT_COLUMNS}, got {columns}")
        return True

    def _fail(self, message: str) -> bool:
        self.location.emit_error(f"'{self.OPERATION_NAME}' op expects {message}")
        return False
