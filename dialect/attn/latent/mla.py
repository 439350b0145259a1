"""`attn.mla`: latent attention before absorption, whose keys all heads share a part of."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.attributes import attr_to_mask, mask_misfit, mask_to_attr
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.columns import make_columns
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.latent.columns import ROPE_COLUMNS, ROW_COLUMNS
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.dialect.attn.masks import Mask
from attn_mlir.dialect.attn.mha import OUTPUT_TYPES, SCHEDULE
from attn_mlir.dialect.attn.scaled import make_scaled
from attn_mlir.dialect.attn.shapes import Axes, axes_in_memory, logical_types, shape_misfit
from attn_mlir.dialect.attn.storage import (
    cache_views,
    logical_type,
    scales_view,
    sequences_view,
    stored_type,
)
from attn_mlir.dialect.attn.verifier import group_misfit, scale_misfit, tensors_misfit, verified
from attn_mlir.element_types import ELEMENT_TYPES, NARROW_MLIR, WIDE_MLIR

OPERAND_TYPES = (*WIDE_MLIR, *NARROW_MLIR)
ROPE_SCALES = "k_rope_descale"  # of its positions
ROW_SCALES = {"q_nope": "q_descale", "q_rope": "q_descale", "k_nope": "k_descale"}
TABLES = {"v": "v_descale"}  # of sequences and heads
NARROW_ROPE = ("bf16", "f8E4M3FN")  # of the other operands, and of k_rope under these
WIDE_ROPE = ("f8E4M3FN", "bf16")  # of the other operands, and of q_rope and k_rope beside these

OPERAND_AXES: dict[str, Axes] = {
    "q_nope": ("batch", "sq", "heads", "nope"),
    "q_rope": ("batch", "sq", "heads", "rope"),
    "k_nope": ("batch", "sk", "kv_heads", "nope"),
    "k_rope": ("batch", "sk", "one head", "rope"),
    "v": ("batch", "sk", "kv_heads", "v_head_dim"),
}
_AXES: dict[str, Axes] = {
    **OPERAND_AXES,
    "o": ("batch", "sq", "heads", "v_head_dim"),
    "lse": ("batch", "heads", "sq"),
}
_RAGGED_RESULTS: dict[str, Axes] = {
    "o": ("total", "heads", "v_head_dim"),
    "lse": ("heads", "total"),
}
_STATIC_AXES = ("heads", "kv_heads", "one head", "nope", "rope", "v_head_dim")


class MlaOp(AttnDialect.Operation, name="mla", traits=[Pure]):
    """Latent attention with keys of each head: o = softmax(scale x s, mask) v, and its LSE, where

        s[i, j] = q_nope[i] . k_nope[j]  +  q_rope[i] . k_rope[j]

    k_rope may be of 8 bits under operands of bf16, with a scale for each position (`attn.scaled`):
    its elements times their scales, rounded to bf16, are what is multiplied. Beside operands of
    f8E4M3FN q_rope and k_rope may both be of bf16; scales of rows multiply all that is in them.

    Rope columns of keys are those of all heads: k_rope has one. It may lie in a latent cache of its
    own sequences (`attn.paged`, `attn.columns`), while k_nope and v lie as they were projected; a
    sequence then has the keys that both have. Head sizes are static; query head h reads head
    h // (heads / kv_heads) of k_nope and v.

    Results:
      o: [batch, sq, heads, v_head_dim], bf16, f16 or f32. A row that sees no key is 0.
      lse: [batch, heads, sq], f32: natural logarithm of the sum of the exponentials of the row's
        visible scores. A row that sees no key has -inf.
      Both lie as q_nope does: [total, heads, v_head_dim] and [heads, total] for ragged queries.
        Rows
      that it does not have are not written.

    Operands:
      q_nope: [batch, sq, heads, nope], floats of 16 or 8 bits, as all operands but maybe
        k_rope; tensors or views of other storage, see `storage`.
      q_rope: [batch, sq, heads, rope]; of bf16 also beside f8E4M3FN, as k_rope then is.
      k_nope: [batch, sk, kv_heads, nope].
      k_rope: [batch, sk, 1, rope]; of f8E4M3FN also where the others are bf16.
      v: [batch, sk, kv_heads, v_head_dim].
      scale: f32. It is the model's: nothing here follows from head sizes.

    Attributes:
      mask: which keys a row sees: `#attn.null`, `#attn.causal`, ...; see `masks/`.
      attn.schedule, attn.config (optional): as of `attn.mha`.

    Memory effects: none, it is a function of its operands. Hardware: any.

    Example:
      func.func @mla(%q_nope: tensor<?x?x16x128xbf16>, %q_rope: tensor<?x?x16x64xbf16>,
                     %k_nope: tensor<?x?x16x128xbf16>, %k_rope: tensor<?x?x1x64xbf16>,
                     %v: tensor<?x?x16x128xbf16>, %scale: f32)
          -> (tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>) {
        %o, %lse = "attn.mla"(%q_nope, %q_rope, %k_nope, %k_rope, %v, %scale) {mask = #attn.causal}
          : (tensor<?x?x16x128xbf16>, tensor<?x?x16x64xbf16>, tensor<?x?x16x128xbf16>,
             tensor<?x?x1x64xbf16>, tensor<?x?x16x128xbf16>, f32)
            -> (tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>)
        func.return %o, %lse : tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>
      }
    """

    OPTIONAL_ATTRIBUTES = MappingProxyType({SCHEDULE: ir.StringAttr})

    o: ext.Result[Any]
    lse: ext.Result[Any]
    q_nope: ext.Operand[Any]
    q_rope: ext.Operand[Any]
    k_nope: ext.Operand[Any]
    k_rope: ext.Operand[Any]
    v: ext.Operand[Any]
    scale: ext.Operand[Any]
    mask: Any

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return logical_type(self.q_nope).shape[2]

    @property
    def kv_heads(self) -> int:
        """Number of heads of k_nope and v; divides `heads`."""
        return logical_type(self.k_nope).shape[2]

    @property
    def nope_dim(self) -> int:
        """Elements of a query and key row that are a head's own."""
        return logical_type(self.q_nope).shape[3]

    @property
    def rope_dim(self) -> int:
        """Elements of a key row that all heads share."""
        return logical_type(self.q_rope).shape[3]

    @property
    def head_dim(self) -> int:
        """Length of a row of queries and keys, in elements of `element_type`."""
        return self.nope_dim + self.rope_dim * _bits(self.q_rope) // _bits(self.q_nope)

    @property
    def v_head_dim(self) -> int:
        """Elements per value and output row."""
        return logical_type(self.v).shape[3]

    @property
    def element_type(self) -> ir.Type:
        """Element type of the operands."""
        return logical_type(self.q_nope).element_type

    @property
    def has_narrow_rope(self) -> bool:
        """Whether k_rope has fewer bits than the other operands."""
        return _bits(self.k_rope) < _bits(self.q_nope)

    @property
    def output_type(self) -> ir.Type:
        """Element type of o."""
        return self.o.type.element_type

    @property
    def mask_rule(self) -> Mask:
        """The mask as an object with formulas."""
        return attr_to_mask(self.mask)

    def verify_invariants(self) -> bool:
        """Checks operand and result types, the agreement of the shapes and the mask."""
        axes = axes_in_memory(self, _AXES, {"q_nope": _RAGGED_RESULTS})
        misfit = _type_misfit(self, axes) or latent_shape_misfit(self, axes)
        return verified(self, misfit or mask_misfit(self.mask))


def _bits(operand: Any) -> int:
    """Bits of an element of an operand."""
    element: Any = logical_type(operand).element_type
    return int(element.width)


def _type_misfit(op: MlaOp, axes: Mapping[str, Axes]) -> str:
    """The error in ranks and element types; "" if none."""
    if misfit := tensors_misfit(op, axes):
        return misfit
    types = logical_types(op, axes)
    element = op.element_type
    if str(element) not in OPERAND_TYPES:
        return f"q_nope elements of type {', '.join(OPERAND_TYPES)}, got {element}"
    for name in OPERAND_AXES:
        got = types[name].element_type
        allowed = [str(element)]
        if name == "k_rope" and str(element) == NARROW_ROPE[0]:
            allowed.append(NARROW_ROPE[1])
        if name in ("q_rope", "k_rope") and str(element) == WIDE_ROPE[0]:
            allowed.append(WIDE_ROPE[1])
        if str(got) not in allowed:
            beside = "".join(f" or {other}" for other in allowed[1:])
            return f"{name} elements of q_nope's type {element}{beside}, got {got}"
    rope = [types[name].element_type for name in ("q_rope", "k_rope")]
    if rope[0] != rope[1] and str(element) == WIDE_ROPE[0]:
        return f"k_rope elements of q_rope's type {rope[0]}, got {rope[1]}"
    if str(op.output_type) not in OUTPUT_TYPES:
        return f"o elements of type {', '.join(OUTPUT_TYPES)}, got {op.output_type}"
    if str(op.lse.type.element_type) != "f32":
        return f"lse elements of type f32, got {op.lse.type.element_type}"
    return scale_misfit(op)


def latent_shape_misfit(op: Any, axes: Mapping[str, Axes]) -> str:
    """The error in the extents of `attn.mla`, or of its gradients' operations; "" if none.

    Args:
      axes: axis names of every operand and result, by its name.
    """
    types = logical_types(op, axes)
    if misfit := shape_misfit(types, axes, _STATIC_AXES):
        return misfit
    if (rope_heads := types["k_rope"].shape[2]) != 1:
        return f"k_rope of 1 head, got {rope_heads}"
    return group_misfit(op)


def make_mla(
    operands: tuple[ir.Value, ir.Value, ir.Value, ir.Value, ir.Value],
    scale: ir.Value,
    *,
    mask: Mask,
    output: ir.Type,
) -> MlaOp:
    """Builds an `attn.mla` at the insertion point, shapes of the results from the operands.

    Args:
      operands: q_nope, q_rope, k_nope, k_rope and v, shaped as `MlaOp` says; tensors or views.
      mask: which keys each row sees.
      output: element type of o.
    """
    q_nope, *_, v = operands
    *positions, heads, _ = stored_type(q_nope).shape
    *batch, rows = positions
    o = ir.RankedTensorType.get([*positions, heads, logical_type(v).shape[3]], output)
    lse = ir.RankedTensorType.get([*batch, heads, rows], ir.F32Type.get())
    return MlaOp(o, lse, *operands, scale, mask_to_attr(mask))


def emit_mla(
    arguments: Mapping[str, ir.Value],
    *,
    mask: Mask,
    out_dtype: str,
    lengths: Lengths,
    cache: Cache | None,
    cache_columns: int = ROW_COLUMNS,
) -> MlaOp:
    """Builds one `attn.mla` at the insertion point, with the operations that say how operands lie.

    Args:
      arguments: the operands by name, with `k_rope_descale` where k_rope alone has scales,
        `q_descale`, `k_descale` and `v_descale` where all have, and the index arrays and numbers of
        `lengths` and `cache`.
      mask: which keys each row sees.
      out_dtype: of o.
      lengths: what tells the lengths of sequences; those of keys by number are the cache's, where
        there is one.
      cache: how k_rope lies, if it is in a latent cache.
      cache_columns: of the rows of that, the last of which are rope.
    """
    of_tensors = lengths
    if cache is not None:
        of_tensors = dataclasses.replace(lengths, used_k=False, cached_k=False)

    def stored(name: str) -> ir.Value:
        of_keys = not name.startswith("q_")
        return sequences_view(arguments[name], of_tensors, arguments, of_keys=of_keys)

    of_rows = {name: stored(name) for name in ("q_descale", "k_descale") if name in arguments}

    def scaled(name: str) -> ir.Value:
        rows = stored(name)
        if (scales := ROW_SCALES.get(name)) in of_rows:
            return make_scaled(rows, of_rows[str(scales)])
        if (table := TABLES.get(name)) in arguments:
            return make_scaled(rows, arguments[str(table)])
        return rows

    def rope() -> ir.Value:
        scales = arguments.get(ROPE_SCALES)
        if cache is None:
            rows = stored("k_rope")
            return rows if scales is None else make_scaled(rows, stored(ROPE_SCALES))
        length = next((x for x in ("seqused_k", "cache_seqlens") if x in lengths.tensors), "")
        (rows,) = cache_views(cache, length, [arguments["k_rope"]], arguments)
        if scales is not None:
            rows = make_scaled(rows, scales_view(scales, cache, arguments, of_values=False))
        return make_columns(rows, cache_columns - ROPE_COLUMNS, ROPE_COLUMNS)

    q_nope, q_rope, k_nope = (scaled(name) for name in ("q_nope", "q_rope", "k_nope"))
    k_rope = rope()
    if (of_keys := ROW_SCALES["k_nope"]) in of_rows:
        k_rope = make_scaled(k_rope, of_rows[of_keys])
    return make_mla(
        (q_nope, q_rope, k_nope, k_rope, scaled("v")),
        arguments["scale"],
        mask=mask,
        output=ir.Type.parse(ELEMENT_TYPES[out_dtype].mlir),
    )
