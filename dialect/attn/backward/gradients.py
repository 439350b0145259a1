"""Gradients of attention from the gradient of O: `attn.kv_gradients`, `attn.q_gradients`, and both
at once, `attn.gradients`.
"""

from collections.abc import Callable
from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.attributes import mask_misfit, mask_to_attr
from attn_mlir.dialect.attn.backward.adjoint import AdjointOp
from attn_mlir.dialect.attn.backward.row_weights import RowWeightsOp
from attn_mlir.dialect.attn.backward.slope import SlopeOp
from attn_mlir.dialect.attn.backward.turns import TurnsOp
from attn_mlir.dialect.attn.blocks import BlocksOp
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.join import JoinOp
from attn_mlir.dialect.attn.masks import Mask
from attn_mlir.dialect.attn.mha import MhaOp
from attn_mlir.dialect.attn.modifier.keep import KeepOp
from attn_mlir.dialect.attn.modifier.region import argument_types, inside, region_misfit
from attn_mlir.dialect.attn.modifier.sink import SinkOp
from attn_mlir.dialect.attn.modifier.yield_ import YieldOp
from attn_mlir.dialect.attn.offsets import OffsetsOp
from attn_mlir.dialect.attn.shapes import Axes, axes_in_memory, logical_types, shape_misfit
from attn_mlir.dialect.attn.storage import stored_type
from attn_mlir.dialect.attn.tile_counter import TileCounterOp
from attn_mlir.dialect.attn.verifier import group_misfit, verified, wide_misfit

_Q: Axes = ("batch", "sq", "heads", "head_dim")
_K: Axes = ("batch", "sk", "kv_heads", "head_dim")
_V: Axes = ("batch", "sk", "kv_heads", "v_head_dim")
_AXES: dict[str, Axes] = {
    "q": _Q,
    "k": _K,
    "v": _V,
    "do": ("batch", "sq", "heads", "v_head_dim"),
    **dict.fromkeys(("lse", "delta"), ("batch", "heads", "sq")),
    **dict.fromkeys(("dq", "dq_accum"), _Q),
    "dk": _K,
    "dv": _V,
}
_RAGGED: dict[str, dict[str, Axes]] = {
    "q": {
        "lse": ("heads", "total"),
        "delta": ("heads", "total"),
        **dict.fromkeys(("dq", "dq_accum"), ("total", "heads", "head_dim")),
    },
    "k": {
        "dk": ("total_k", "kv_heads", "head_dim"),
        "dv": ("total_k", "kv_heads", "v_head_dim"),
    },
}
_F32 = ("lse", "delta", "dq_accum")
_STATIC_AXES = ("heads", "kv_heads", "head_dim", "v_head_dim")


class _AnyGradientsOp(AttnDialect.Operation):
    """The operands, the mask and the modifier of each of these operations.

    Attributes:
      queries, keys: names of the operands whose columns make up a row of Q, and of K.
    """

    queries, keys = ("q",), ("k",)

    q: ext.Operand[Any]
    k: ext.Operand[Any]
    v: ext.Operand[Any]
    do: ext.Operand[Any]
    lse: ext.Operand[Any]
    delta: ext.Operand[Any]
    scale: ext.Operand[Any]
    mask: Any
    score_mod: ext.Region

    heads, kv_heads = MhaOp.heads, MhaOp.kv_heads
    head_dim, v_head_dim = MhaOp.head_dim, MhaOp.v_head_dim
    element_type, mask_rule = MhaOp.element_type, MhaOp.mask_rule

    @property
    def hides_scores(self) -> bool:
        """Whether the score modifier holds an `attn.keep`."""
        return bool(inside(self, KeepOp))

    @property
    def blocks(self) -> BlocksOp | None:
        """The lists of blocks in the score modifier, if there are any."""
        return next(iter(inside(self, BlocksOp)), None)

    def verify_invariants(self) -> bool:
        """Checks operand and result types, the mask and the agreement of the shapes."""
        axes = axes_in_memory(self, _AXES, _RAGGED)
        return verified(
            self,
            wide_misfit(self, axes, _F32)
            or shape_misfit(logical_types(self, axes), axes, _STATIC_AXES)
            or group_misfit(self)
            or mask_misfit(self.mask),
        )

    def verify_region_invariants(self) -> bool:
        """Checks the score modifier, if there is one."""
        return verified(self, _region_misfit(self) if self.score_mod.blocks else "")


class KvGradientsOp(_AnyGradientsOp, name="kv_gradients", traits=[Pure]):
    """The gradients of k and v of attention, given that of its output:

        p[i, j] = e^(mod(scale x q[i] . k[j]) - lse[i]) where i sees j, else 0
        ds[i, j] = p[i, j] (do[i] . v[j] - delta[i]) slope[i, j], and 0 where p is
        dv[j] = sum_i p[i, j] do[i]
        dk[j] = scale x sum_i ds[i, j] q[i]

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

    Region `score_mod`: empty, or as of `attn.mha`, with `attn.keep`, and at most one each of
      `attn.slope`, `attn.row_weights` and `attn.blocks`; but in `attn.gradients` any number of
      `attn.adjoint`.

    Memory effects: none, it is a function of its operands. Hardware: sm_90.

    Example:
      %dk, %dv =
        "attn.kv_gradients"(%q, %k, %v, %do, %lse, %delta, %scale) ({}) {mask = #attn.causal}
        : (tensor<?x?x16x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>,
           tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>, tensor<?x16x?xf32>, f32)
          -> (tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>)
    """

    dk: ext.Result[Any]
    dv: ext.Result[Any]


class QGradientsOp(_AnyGradientsOp, name="q_gradients", traits=[Pure]):
    """The gradient of q of attention, given that of its output; ds as of `attn.kv_gradients`:

        dq[i] = scale x sum_j ds[i, j] k[j]

    A query that sees no key has a gradient of 0.

    Results:
      dq: [batch, sq, heads, head_dim], element type of q; stored as q is: [total, heads, head_dim]
        for ragged queries. Rows for which there is no query are not written.

    Operands, attributes and region: as of `attn.kv_gradients`.

    Memory effects: none, it is a function of its operands. Hardware: sm_90.

    Example:
      %dq = "attn.q_gradients"(%q, %k, %v, %do, %lse, %delta, %scale) ({}) {mask = #attn.causal}
        : (tensor<?x?x16x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>,
           tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>, tensor<?x16x?xf32>, f32)
          -> tensor<?x?x16x128xbf16>
    """

    dq: ext.Result[Any]


class GradientsOp(_AnyGradientsOp, name="gradients"):
    """The gradients of k and v of attention, given that of its output, as of `attn.kv_gradients`;
    and that of q, without the scale, added to memory:

        dq_accum[i] += sum_j ds[i, j] k[j]

    Results:
      dk, dv: as of `attn.kv_gradients`.

    Operands:
      q, k, v, do, lse, delta, scale: as of `attn.kv_gradients`.
      dq_accum: [batch, sq, heads, head_dim], or [total, heads, head_dim] for ragged queries; f32:
        memory. Nothing is added to rows for which there is no query.

    Attributes and region: as of `attn.kv_gradients`.

    Memory effects: reads and writes `dq_accum`. Each element is added to atomically, once by each
    CTA whose keys its query sees, so that rounding depends on timing; unless the region has an
    `attn.turns`, with which CTAs take turns. Hardware: sm_90.

    Example:
      %dk, %dv = "attn.gradients"(%q, %k, %v, %do, %lse, %delta, %scale, %sums) ({})
        {mask = #attn.causal}
        : (tensor<?x?x16x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>,
           tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>, tensor<?x16x?xf32>, f32,
           tensor<?x?x16x128xf32>)
          -> (tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>)
    """

    dk: ext.Result[Any]
    dv: ext.Result[Any]
    dq_accum: ext.Operand[Any]


def make_gradients(
    kind: type[Any],
    *operands: ir.Value,
    mask: Mask,
    score_mod: Callable[..., ir.Value] | None = None,
) -> Any:
    """Builds an operation on gradients at the insertion point; results are stored as operands.

    Args:
      kind: KvGradientsOp, QGradientsOp or GradientsOp.
      operands: q, k, v, do, lse, delta and scale, and for GradientsOp dq_accum, as the class says.
      mask: which keys each row sees.
      score_mod: builds the modified score from (score, batch, head, q, k), and its slope.
    """
    q, k, v, do, lse, delta, scale, *accumulators = operands
    of = {"dq": q, "dk": k, "dv": v}
    results = (stored_type(of[name]) for name in of if name in kind.__annotations__)
    op = kind(q, k, v, do, lse, delta, scale, mask_to_attr(mask), *results, *accumulators)
    if score_mod is not None:
        with ir.InsertionPoint(block := op.score_mod.blocks.append(*argument_types())):
            YieldOp(score_mod(*block.arguments))
    return op


def _region_misfit(op: Any) -> str:
    """The error in the score modifier; "" if none."""
    if misfit := region_misfit(op.score_mod):
        return misfit
    if others := inside(op, (SinkOp, JoinOp, TileCounterOp, OffsetsOp)):
        return f"no '{others[0].OPERATION_NAME}' in score_mod"
    if isinstance(op, GradientsOp) and inside(op, AdjointOp):
        return "no 'attn.adjoint' in score_mod"
    if not isinstance(op, GradientsOp) and inside(op, TurnsOp):
        return "no 'attn.turns' in score_mod"
    for kind in (SlopeOp, RowWeightsOp, BlocksOp, TurnsOp):
        if (count := len(inside(op, kind))) > 1:
            return f"at most one '{kind.OPERATION_NAME}' in score_mod, got {count}"
    return ""
