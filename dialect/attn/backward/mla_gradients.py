"""Gradients of latent attention before absorption: `attn.mla_kv_gradients`, `attn.mla_q_gradients`.

They are those of attention over rows of nope and rope side by side, each in tensors of its own.
"""

from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.attributes import attr_to_mask, mask_misfit, mask_to_attr
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.masks import Mask
from attn_mlir.dialect.attn.shapes import Axes, rank_misfit, shape_misfit
from attn_mlir.dialect.attn.storage import logical_type, stored_type
from attn_mlir.element_types import WIDE_MLIR

OPERANDS = ("q_nope", "q_rope", "k_nope", "k_rope", "v", "do")  # in rows of several elements

_AXES: dict[str, Axes] = {
    "q_nope": ("batch", "sq", "heads", "nope"),
    "q_rope": ("batch", "sq", "heads", "rope"),
    "k_nope": ("batch", "sk", "kv_heads", "nope"),
    "k_rope": ("batch", "sk", "one head", "rope"),
    "v": ("batch", "sk", "kv_heads", "v_head_dim"),
    "do": ("batch", "sq", "heads", "v_head_dim"),
    "lse": ("batch", "heads", "sq"),
    "delta": ("batch", "heads", "sq"),
}
_RESULTS: dict[str, Axes] = {
    "dq_nope": _AXES["q_nope"],
    "dq_rope": _AXES["q_rope"],
    "dk_nope": _AXES["k_nope"],
    "dk_rope_parts": ("batch", "sk", "kv_heads", "rope"),
    "dv": _AXES["v"],
}
_F32 = ("lse", "delta", "dk_rope_parts")
_STATIC_AXES = ("heads", "kv_heads", "one head", "nope", "rope", "v_head_dim")


def _heads(op: Any) -> int:
    """Number of query heads."""
    return logical_type(op.q_nope).shape[2]


def _kv_heads(op: Any) -> int:
    """Number of heads of k_nope and v; divides `heads`."""
    return logical_type(op.k_nope).shape[2]


def _nope_dim(op: Any) -> int:
    """Elements of a query and key row that are a head's own."""
    return logical_type(op.q_nope).shape[3]


def _rope_dim(op: Any) -> int:
    """Elements of a key row that all heads share."""
    return logical_type(op.q_rope).shape[3]


def _head_dim(op: Any) -> int:
    """Elements of a query and key row."""
    return _nope_dim(op) + _rope_dim(op)


def _v_head_dim(op: Any) -> int:
    """Elements per value row."""
    return logical_type(op.v).shape[3]


def _element_type(op: Any) -> ir.Type:
    """Element type of all operands but those of single rows."""
    return logical_type(op.q_nope).element_type


def _mask_rule(op: Any) -> Mask:
    """The mask as an object with formulas."""
    return attr_to_mask(op.mask)


def _verify(op: Any) -> bool:
    """Checks operand and result types, the agreement of the shapes and the mask."""
    misfit = _type_misfit(op) or _shape_misfit(op) or mask_misfit(op.mask)
    if misfit:
        op.location.emit_error(f"'{op.OPERATION_NAME}' op expects {misfit}")
    return not misfit


class MlaKvGradientsOp(AttnDialect.Operation, name="mla_kv_gradients", traits=[Pure]):
    """The gradients of keys and values of latent attention, given that of its output; p and ds as
    of `attn.kv_gradients`, with the scores and operands of `attn.mla`:

        dv[j] = sum_i p[i, j] do[i]
        dk_nope[j] = scale x sum_i ds[i, j] q_nope[i]
        dk_rope_parts[j] = scale x sum_i ds[i, j] q_rope[i]

    with the sums over the queries of all heads that share a head of k_nope and v. The gradient of
    k_rope is the sum of its parts over these heads.

    Results:
      dk_nope: [batch, sk, kv_heads, nope], element type of k_nope.
      dk_rope_parts: [batch, sk, kv_heads, rope], f32.
      dv: [batch, sk, kv_heads, v_head_dim], element type of v.
      All are stored as k_nope is: [total, kv_heads, ...] for ragged keys. Rows for which there is
        no key are not written; those of a key that no query sees are 0.

    Operands:
      q_nope: [batch, sq, heads, nope], bf16 or f16; as all operands of rows a tensor or a view of
        other storage, see `storage`.
      q_rope: [batch, sq, heads, rope], element type of q_nope, as all of these.
      k_nope: [batch, sk, kv_heads, nope].
      k_rope: [batch, sk, 1, rope], those of all heads.
      v: [batch, sk, kv_heads, v_head_dim].
      do: [batch, sq, heads, v_head_dim]: the gradient of the output.
      lse, delta: [batch, heads, sq], f32, or [heads, total] for ragged queries: as of
        `attn.kv_gradients`.
      scale: f32, multiplies the scores.

    Attributes:
      mask: which keys a row sees, as of `attn.mla`.
      attn.config (optional, by `attn-configure`): tile sizes, stages and registers.

    Memory effects: none, it is a function of its operands. Hardware: any.

    Example:
      %dk_nope, %parts, %dv =
        "attn.mla_kv_gradients"(%q, %q_rope, %k, %k_rope, %v, %do, %lse, %delta, %scale)
        {mask = #attn.causal}
        : (tensor<?x?x16x128xbf16>, tensor<?x?x16x64xbf16>, tensor<?x?x16x128xbf16>,
           tensor<?x?x1x64xbf16>, tensor<?x?x16x128xbf16>, tensor<?x?x16x128xbf16>,
           tensor<?x16x?xf32>, tensor<?x16x?xf32>, f32)
          -> (tensor<?x?x16x128xbf16>, tensor<?x?x16x64xf32>, tensor<?x?x16x128xbf16>)
    """

    dk_nope: ext.Result[Any]
    dk_rope_parts: ext.Result[Any]
    dv: ext.Result[Any]
    q_nope: ext.Operand[Any]
    q_rope: ext.Operand[Any]
    k_nope: ext.Operand[Any]
    k_rope: ext.Operand[Any]
    v: ext.Operand[Any]
    do: ext.Operand[Any]
    lse: ext.Operand[Any]
    delta: ext.Operand[Any]
    scale: ext.Operand[Any]
    mask: Any

    heads, kv_heads = property(_heads), property(_kv_heads)
    nope_dim, rope_dim = property(_nope_dim), property(_rope_dim)
    head_dim, v_head_dim = property(_head_dim), property(_v_head_dim)
    element_type, mask_rule = property(_element_type), property(_mask_rule)
    verify_invariants = _verify


class MlaQGradientsOp(AttnDialect.Operation, name="mla_q_gradients", traits=[Pure]):
    """The gradients of queries of latent attention, given that of its output; ds as of
    `attn.mla_kv_gradients`:

        dq_nope[i] = scale x sum_j ds[i, j] k_nope[j]
        dq_rope[i] = scale x sum_j ds[i, j] k_rope[j]

    A query that sees no key has gradients of 0.

    Results:
      dq_nope, dq_rope: of the types of q_nope and q_rope, stored as these are. Rows for which there
        is no query are not written.

    Operands and attributes: as of `attn.mla_kv_gradients`.

    Memory effects: none, it is a function of its operands. Hardware: any.

    Example:
      %dq_nope, %dq_rope =
        "attn.mla_q_gradients"(%q, %q_rope, %k, %k_rope, %v, %do, %lse, %delta, %scale)
        {mask = #attn.causal}
        : (tensor<?x?x16x128xbf16>, tensor<?x?x16x64xbf16>, tensor<?x?x16x128xbf16>,
           tensor<?x?x1x64xbf16>, tensor<?x?x16x128xbf16>, tensor<?x?x16x128xbf16>,
           tensor<?x16x?xf32>, tensor<?x16x?xf32>, f32)
          -> (tensor<?x?x16x128xbf16>, tensor<?x?x16x64xbf16>)
    """

    dq_nope: ext.Result[Any]
    dq_rope: ext.Result[Any]
    q_nope: ext.Operand[Any]
    q_rope: ext.Operand[Any]
    k_nope: ext.Operand[Any]
    k_rope: ext.Operand[Any]
    v: ext.Operand[Any]
    do: ext.Operand[Any]
    lse: ext.Operand[Any]
    delta: ext.Operand[Any]
    scale: ext.Operand[Any]
    mask: Any

    heads, kv_heads = property(_heads), property(_kv_heads)
    nope_dim, rope_dim = property(_nope_dim), property(_rope_dim)
    head_dim, v_head_dim = property(_head_dim), property(_v_head_dim)
    element_type, mask_rule = property(_element_type), property(_mask_rule)
    verify_invariants = _verify


def make_mla_gradients(kind: type[Any], *operands: ir.Value, mask: Mask) -> Any:
    """Builds an operation on gradients at the insertion point; results lie as their operands do.

    Args:
      kind: MlaKvGradientsOp or MlaQGradientsOp.
      operands: q_nope, q_rope, k_nope, k_rope, v, do, lse, delta and scale, shaped as it says.
      mask: which keys each row sees.
    """
    q_nope, q_rope, k_nope, _, v, *_ = operands
    *rows, _ = stored_type(k_nope).shape
    parts = ir.RankedTensorType.get([*rows, logical_type(q_rope).shape[3]], ir.F32Type.get())
    of = {
        "dq_nope": stored_type(q_nope),
        "dq_rope": stored_type(q_rope),
        "dk_nope": stored_type(k_nope),
        "dk_rope_parts": parts,
        "dv": stored_type(v),
    }
    results = (result for name, result in of.items() if name in kind.__annotations__)
    return kind(*results, *operands, mask_to_attr(mask))


def _axes(op: Any) -> dict[str, Axes]:
    """Names of the axes of every operand and result; rows and results lie as q_nope and k_nope."""
    axes = _AXES | {name: own for name, own in _RESULTS.items() if hasattr(op, name)}
    for operand, total in ((op.q_nope, "total"), (op.k_nope, "total_k")):
        stored, of_queries = stored_type(operand), total == "total"
        rank = stored.rank if isinstance(stored, ir.RankedTensorType) else 0
        if operand.type == stored or rank == len(_AXES["q_nope"]):
            continue
        for name, own in _RESULTS.items():
            if name in axes and name.startswith("dq") == of_queries:
                axes[name] = (total, *own[2:])
        if of_queries:
            axes |= dict.fromkeys(("lse", "delta"), ("heads", total))
    return axes


def _types(op: Any) -> dict[str, Any]:
    """The logical type of each operand and result with axes."""
    return {name: logical_type(getattr(op, name)) for name in _axes(op)}


def _type_misfit(op: Any) -> str:
    """The error in ranks and element types; "" if none."""
    types, axes = _types(op), _axes(op)
    if misfit := rank_misfit(types, axes, {name: getattr(op, name).type for name in axes}):
        return misfit
    element = str(op.element_type)
    if element not in WIDE_MLIR:
        return f"q_nope elements of type {', '.join(WIDE_MLIR)}, got {element}"
    for name, kind in types.items():
        expected, said = (
            ("f32", "type f32") if name in _F32 else (element, f"q_nope's type {element}")
        )
        if str(kind.element_type) != expected:
            return f"{name} elements of {said}, got {kind.element_type}"
    return "" if str(op.scale.type) == "f32" else f"scale of type f32, got {op.scale.type}"


def _shape_misfit(op: Any) -> str:
    """The error in the shapes; "" if none."""
    types = _types(op)
    if misfit := shape_misfit(types, _axes(op), _STATIC_AXES):
        return misfit
    if (rope_heads := types["k_rope"].shape[2]) != 1:
        return f"k_rope of 1 head, got {rope_heads}"
    if op.heads % op.kv_heads:
        return f"heads to be a multiple of kv_heads, got {op.heads} and {op.kv_heads}"
    return ""
