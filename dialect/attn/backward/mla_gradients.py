"""Gradients of latent attention before absorption: `attn.mla_kv_gradients`, `attn.mla_q_gradients`.

They are the gradients of attention whose rows of queries and keys are nope and rope concatenated;
nope and rope are separate tensors.
"""

from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.attributes import mask_misfit, mask_to_attr
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.latent.mla import OPERAND_AXES, MlaOp, latent_shape_misfit
from attn_mlir.dialect.attn.masks import Mask
from attn_mlir.dialect.attn.shapes import Axes, axes_in_memory
from attn_mlir.dialect.attn.storage import logical_type, stored_type
from attn_mlir.dialect.attn.verifier import verified, wide_misfit

OPERANDS = (*OPERAND_AXES, "do")  # operands with an axis of columns

_AXES: dict[str, Axes] = {
    **OPERAND_AXES,
    "do": ("batch", "sq", "heads", "v_head_dim"),
    **dict.fromkeys(("lse", "delta"), ("batch", "heads", "sq")),
    "dq_nope": OPERAND_AXES["q_nope"],
    "dq_rope": OPERAND_AXES["q_rope"],
    "dk_nope": OPERAND_AXES["k_nope"],
    "dk_rope_parts": ("batch", "sk", "kv_heads", "rope"),
    "dv": OPERAND_AXES["v"],
}
_RAGGED: dict[str, dict[str, Axes]] = {
    "q_nope": {
        **dict.fromkeys(("lse", "delta"), ("heads", "total")),
        "dq_nope": ("total", "heads", "nope"),
        "dq_rope": ("total", "heads", "rope"),
    },
    "k_nope": {
        "dk_nope": ("total_k", "kv_heads", "nope"),
        "dk_rope_parts": ("total_k", "kv_heads", "rope"),
        "dv": ("total_k", "kv_heads", "v_head_dim"),
    },
}
_F32 = ("lse", "delta", "dk_rope_parts")


class _GradientsOp(AttnDialect.Operation, traits=[Pure]):
    """The operands of both operations.

    Attributes:
      queries, keys: names of the operands whose columns make up a row of Q, and of K.
    """

    queries, keys = ("q_nope", "q_rope"), ("k_nope", "k_rope")

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

    heads, kv_heads = MlaOp.heads, MlaOp.kv_heads
    nope_dim, rope_dim = MlaOp.nope_dim, MlaOp.rope_dim
    head_dim, v_head_dim = MlaOp.head_dim, MlaOp.v_head_dim
    element_type, mask_rule = MlaOp.element_type, MlaOp.mask_rule

    def verify_invariants(self) -> bool:
        """Checks operand and result types, the agreement of the shapes and the mask."""
        axes = axes_in_memory(self, _AXES, _RAGGED)
        misfit = wide_misfit(self, axes, _F32) or latent_shape_misfit(self, axes)
        return verified(self, misfit or mask_misfit(self.mask))


class MlaKvGradientsOp(_GradientsOp, name="mla_kv_gradients"):
    """The gradients of keys and values of latent attention, from the gradient of its output. p and
    ds are defined as in `attn.kv_gradients`, for the scores and operands of `attn.mla`:

        dv[j] = sum_i p[i, j] do[i]
        dk_nope[j] = scale x sum_i ds[i, j] q_nope[i]
        dk_rope_parts[j] = scale x sum_i ds[i, j] q_rope[i]

    The sums cover the queries of all heads that share a head of k_nope and v. The gradient of
    k_rope is the sum of dk_rope_parts over kv_heads.

    Results:
      dk_nope: [batch, sk, kv_heads, nope], element type of k_nope.
      dk_rope_parts: [batch, sk, kv_heads, rope], f32.
      dv: [batch, sk, kv_heads, v_head_dim], element type of v.
      All are stored as k_nope is: [total, kv_heads, ...] for ragged keys. Rows without a key are
        not written; rows of a key that no query sees are 0.

    Operands:
      q_nope: [batch, sq, heads, nope], bf16 or f16. This and the next five operands have one
        element type, and are tensors or views of other storage, see `storage`.
      q_rope: [batch, sq, heads, rope].
      k_nope: [batch, sk, kv_heads, nope].
      k_rope: [batch, sk, 1, rope], shared by all heads.
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


class MlaQGradientsOp(_GradientsOp, name="mla_q_gradients"):
    """The gradients of queries of latent attention, from the gradient of its output. ds is defined
    as in `attn.mla_kv_gradients`:

        dq_nope[i] = scale x sum_j ds[i, j] k_nope[j]
        dq_rope[i] = scale x sum_j ds[i, j] k_rope[j]

    A query that sees no key has gradients of 0.

    Results:
      dq_nope, dq_rope: types and storage of q_nope and q_rope. Rows without a query are not
        written.

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


def make_mla_gradients(kind: type[Any], *operands: ir.Value, mask: Mask) -> Any:
    """Builds an operation on gradients at the insertion point; results are stored as operands.

    Args:
      kind: MlaKvGradientsOp or MlaQGradientsOp.
      operands: q_nope, q_rope, k_nope, k_rope, v, do, lse, delta and scale, shaped as `kind` says.
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
    return kind(*operands, mask_to_attr(mask), *results)
