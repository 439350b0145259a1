"""`attn.kv_gradients` and `attn.q_gradients`: gradients of attention from the gradient of O."""

from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.attributes import attr_to_mask, mask_misfit, mask_to_attr
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.masks import Mask
from attn_mlir.dialect.attn.shapes import Axes, rank_misfit, shape_misfit
from attn_mlir.dialect.attn.storage import logical_type, stored_type
from attn_mlir.element_types import WIDE_MLIR

_OPERANDS: dict[str, Axes] = {
    "q": ("batch", "sq", "heads", "head_dim"),
    "k": ("batch", "sk", "kv_heads", "head_dim"),
    "v": ("batch", "sk", "kv_heads", "v_head_dim"),
    "do": ("batch", "sq", "heads", "v_head_dim"),
    "lse": ("batch", "heads", "sq"),
    "delta": ("batch", "heads", "sq"),
}
_RESULTS: dict[str, Axes] = {
    "dq": _OPERANDS["q"],
    "dk": _OPERANDS["k"],
    "dv": _OPERANDS["v"],
}
_RAGGED: dict[str, dict[str, Axes]] = {
    "q": {
        "lse": ("heads", "total"),
        "delta": ("heads", "total"),
        "dq": ("total", "heads", "head_dim"),
    },
    "k": {
        "dk": ("total_k", "kv_heads", "head_dim"),
        "dv": ("total_k", "kv_heads", "v_head_dim"),
    },
}
_ROWS = ("lse", "delta")  # f32 for each query
_STATIC_AXES = ("heads", "kv_heads", "head_dim", "v_head_dim")


def _heads(op: Any) -> int:
    """Number of query heads."""
    return logical_type(op.q).shape[2]


def _kv_heads(op: Any) -> int:
    """Number of key-value heads; divides `heads`."""
    return logical_type(op.k).shape[2]


def _head_dim(op: Any) -> int:
    """Elements per query and key row."""
    return logical_type(op.q).shape[3]


def _v_head_dim(op: Any) -> int:
    """Elements per value row."""
    return logical_type(op.v).shape[3]


def _element_type(op: Any) -> ir.Type:
    """Element type of all operands but those of single rows, and of the results."""
    return logical_type(op.q).element_type


def _mask_rule(op: Any) -> Mask:
    """The mask as an object with formulas."""
    return attr_to_mask(op.mask)


def _verify(op: Any) -> bool:
    """Checks operand and result types, the mask and the agreement of the shapes."""
    if misfit := _type_misfit(op) or _shape_misfit(op) or mask_misfit(op.mask):
        op.location.emit_error(f"'{op.OPERATION_NAME}' op expects {misfit}")
    return not misfit


class KvGradientsOp(AttnDialect.Operation, name="kv_gradients", traits=[Pure]):
    """The gradients of k and v of attention, given that of its output:

        p[i, j] = e^(scale x q[i] . k[j] - lse[i]) where i sees j, else 0
        dv[j] = sum_i p[i, j] do[i]
        dk[j] = scale x sum_i p[i, j] (do[i] . v[j] - delta[i]) q[i]

    with the sums over the queries of all heads that share a key-value head. A key that no query
    sees has gradients of 0.

    Results:
      dk: [batch, sk, kv_heads, head_dim], element type of k.
      dv: [batch, sk, kv_heads, v_head_dim], element type of k.
      Both are stored as k is: [total, kv_heads, ...] for ragged keys. Rows for which there is no
        key are not written.

    Operands:
      q: [batch, sq, heads, head_dim], bf16 or f16; q, k, v and do are tensors or views of other
        storage, see `storage`.
      k: [batch, sk, kv_heads, head_dim], element type of q.
      v: [batch, sk, kv_heads, v_head_dim], element type of q.
      do: [batch, sq, heads, v_head_dim], element type of q: the gradient of the output.
      lse: [batch, heads, sq], f32, or [heads, total] for ragged queries: as `attn.mha` returns it;
        -inf for a query that sees no key.
      delta: as lse: the sum of do x o over the columns of each row, less the gradient of the LSE.
      scale: f32, multiplies q k^T.

    Attributes:
      mask: which keys a row sees, as of `attn.mha`.
      attn.config (optional, by `attn-configure`): tile sizes, stages and registers.

    Memory effects: none, it is a function of its operands. Hardware: sm_90.

    Example:
      %dk, %dv = "attn.kv_gradients"(%q, %k, %v, %do, %lse, %delta, %scale) {mask = #attn.causal}
        : (tensor<?x?x16x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>,
           tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>, tensor<?x16x?xf32>, f32)
          -> (tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>)
    """

    dk: ext.Result[Any]
    dv: ext.Result[Any]
    q: ext.Operand[Any]
    k: ext.Operand[Any]
    v: ext.Operand[Any]
    do: ext.Operand[Any]
    lse: ext.Operand[Any]
    delta: ext.Operand[Any]
    scale: ext.Operand[Any]
    mask: Any

    heads, kv_heads = property(_heads), property(_kv_heads)
    head_dim, v_head_dim = property(_head_dim), property(_v_head_dim)
    element_type, mask_rule = property(_element_type), property(_mask_rule)
    verify_invariants = _verify


class QGradientsOp(AttnDialect.Operation, name="q_gradients", traits=[Pure]):
    """The gradient of q of attention, given that of its output; p as of `attn.kv_gradients`:

        dq[i] = scale x sum_j p[i, j] (do[i] . v[j] - delta[i]) k[j]

    A query that sees no key has a gradient of 0.

    Results:
      dq: [batch, sq, heads, head_dim], element type of q; stored as q is: [total, heads, head_dim]
        for ragged queries. Rows for which there is no query are not written.

    Operands and attributes: as of `attn.kv_gradients`.

    Memory effects: none, it is a function of its operands. Hardware: sm_90.

    Example:
      %dq = "attn.q_gradients"(%q, %k, %v, %do, %lse, %delta, %scale) {mask = #attn.causal}
        : (tensor<?x?x16x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>,
           tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>, tensor<?x16x?xf32>, f32)
          -> tensor<?x?x16x128xbf16>
    """

    dq: ext.Result[Any]
    q: ext.Operand[Any]
    k: ext.Operand[Any]
    v: ext.Operand[Any]
    do: ext.Operand[Any]
    lse: ext.Operand[Any]
    delta: ext.Operand[Any]
    scale: ext.Operand[Any]
    mask: Any

    heads, kv_heads = property(_heads), property(_kv_heads)
    head_dim, v_head_dim = property(_head_dim), property(_v_head_dim)
    element_type, mask_rule = property(_element_type), property(_mask_rule)
    verify_invariants = _verify


def make_kv_gradients(*operands: ir.Value, mask: Mask) -> KvGradientsOp:
    """Builds an `attn.kv_gradients` at the insertion point, whose results lie as k and v do.

    Args:
      operands: q, k, v, do, lse, delta and scale, shaped as `KvGradientsOp` says.
      mask: which keys each row sees.
    """
    _, k, v, *_ = operands
    return KvGradientsOp(stored_type(k), stored_type(v), *operands, mask_to_attr(mask))


def make_q_gradients(*operands: ir.Value, mask: Mask) -> QGradientsOp:
    """Builds an `attn.q_gradients` at the insertion point, whose result lies as q does.

    Args:
      operands, mask: as of `make_kv_gradients`.
    """
    return QGradientsOp(stored_type(operands[0]), *operands, mask_to_attr(mask))


def _axes(op: Any) -> dict[str, Axes]:
    """Names of the axes of every operand and result; rows and results lie as q and k do."""
    results = {name: axes for name, axes in _RESULTS.items() if hasattr(op, name)}
    axes = _OPERANDS | results
    for name, ragged in _RAGGED.items():
        operand = getattr(op, name)
        stored = stored_type(operand)
        rank = stored.rank if isinstance(stored, ir.RankedTensorType) else 0
        if operand.type != stored and rank < len(_OPERANDS[name]):
            axes = axes | {known: own for known, own in ragged.items() if known in axes}
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
        return f"q elements of type {', '.join(WIDE_MLIR)}, got {element}"
    for name, kind in types.items():
        expected, said = ("f32", "type f32") if name in _ROWS else (element, f"q's type {element}")
        if str(kind.element_type) != expected:
            return f"{name} elements of {said}, got {kind.element_type}"
    return "" if str(op.scale.type) == "f32" else f"scale of type f32, got {op.scale.type}"


def _shape_misfit(op: Any) -> str:
    """The error in the shapes; "" if none."""
    if misfit := shape_misfit(_types(op), _axes(op), _STATIC_AXES):
        return misfit
    heads, kv_heads = op.heads, op.kv_heads
    return (
        f"heads to be a multiple of kv_heads, got {heads} and {kv_heads}"
        if heads % kv_heads
        else ""
    )
