"""FlashMLA's sparse prefill."""

from __future__ import annotations

from typing import Any

from attn_mlir.adapters import adapter
from attn_mlir.calls import sparse_mla
from attn_mlir.errors import SpecError
from attn_mlir.flash_mla.table import NEUTRAL, SPARSE
from attn_mlir.latent_heads import with_filled_heads
from attn_mlir.lse import mark_without_keys
from attn_mlir.runtime.call.tensors import shape_of

INDICES_RANK = 3


@adapter(NEUTRAL, "q kv indices sm_scale d_v attn_sink topk_length indexer_topk", options=SPARSE)
def flash_mla_sparse_fwd(q: Any, kv: Any, indices: Any, **options: Any) -> tuple[Any, Any, Any]:
    """As FlashMLA's `flash_mla_sparse_fwd`, on top of `attn_mlir.sparse_mla`.

    Differences: topk is any number, and so are the heads, which are copied to a multiple of 8 or,
    above 64, of 64; and a row that only entries past `topk_length` name is not read.

    Args:
      q: [s_q, h_q, d_qk] bf16 or f16.
      kv: [s_kv, 1, d_qk] of q's dtype.
      indices: [s_q, 1, topk] i32 or u32.
      sm_scale: of the scores.
      d_v: 512.
      attn_sink: [h_q] f32, a logit per head.
      topk_length: [s_q] i32 or u32.
      device, stream: see `attn_mlir.attention`.

    Returns:
      (out, max_logits, lse): [s_q, h_q, 512] of q's dtype and twice [s_q, h_q] f32, natural
      logarithms. For a query without an entry that counts out is 0, max_logits -inf and lse +inf.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    shape = shape_of(indices, "indices")
    if len(shape) != INDICES_RANK or shape[1] != 1:
        raise SpecError(f"indices must be [s_q, 1, topk], got {list(shape)}")
    sinks = options.pop("attn_sink", None)

    def attend(q: Any, attn_sink: Any) -> tuple[Any, ...]:
        given = options | {"attn_sink": attn_sink}
        return SPARSE.call(sparse_mla, q, kv, indices[:, 0], given=given)

    out, lse, max_logits = with_filled_heads(
        attend, q, sinks, axis=1, sinks_name="attn_sink", by_tiles=True,
        stream=options.get("stream"),
    )  # fmt: skip
    mark_without_keys(lse, options.get("stream"))
    return out, max_logits, lse
