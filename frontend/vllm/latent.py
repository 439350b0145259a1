"""Latent attention of vLLM's requests, after absorption and before it, by tensors alone."""

from __future__ import annotations

import sys
from typing import Any

from attn_mlir.caches import PagedKV
from attn_mlir.calls import mla_decode
from attn_mlir.errors import SpecError
from attn_mlir.flash import flash_attn_varlen_func
from attn_mlir.flash.lengths import shape_of_rank
from attn_mlir.masks import causal, full
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import flag
from attn_mlir.runtime.kernel import DeviceChoice

_decode = renamed(
    mla_decode,
    k_pages="kv_c_and_k_pe_cache",
    page_table="block_table",
    seqused="seq_lens",
)
_NEW_TOKENS = {
    "softmax_scale": "scale",
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), "query_start_loc"),
    **dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), "max_query_len"),
}
_of_new_tokens = renamed(flash_attn_varlen_func, **_NEW_TOKENS)
_of_context = renamed(
    flash_attn_varlen_func,
    **{**_NEW_TOKENS, "cu_seqlens_k": "cu_seq_lens", "max_seqlen_k": "max_seq_len"},
)


def decode(
    q: Any,
    kv_c_and_k_pe_cache: Any,
    block_table: Any,
    seq_lens: Any,
    scale: float,
    *,
    is_causal: bool = True,
    device: DeviceChoice = None,
) -> tuple[Any, Any]:
    """Absorbed latent attention of equally many queries of each request, as `forward_mqa`.

    Args:
      q: [tokens, heads, 576], or as (latent, rope) [tokens, heads, 512] and [tokens, heads, 64].
      kv_c_and_k_pe_cache: [blocks, block, 576] of q's dtype.
      block_table: [requests, columns] i32.
      seq_lens: [requests] i32, rows of each request.
      scale: of the scores.
      is_causal: whether the queries are the last positions of their request; else all see all rows.
      device: see `attention`.

    Returns:
      (o, lse): [tokens, heads, 512] like q, and [tokens, heads] f32, natural logarithms.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    if isinstance(q, tuple):
        q = sys.modules["torch"].cat(q, dim=-1)
    tokens, heads, columns = shape_of_rank("q", q, 3)
    (requests,) = shape_of_rank("seq_lens", seq_lens, 1)
    shape_of_rank("kv_c_and_k_pe_cache", kv_c_and_k_pe_cache, 3)
    if requests == 0 or tokens % requests:
        raise SpecError(f"q has {tokens} tokens, which {requests} requests do not share equally")
    cache = PagedKV(kv_c_and_k_pe_cache[:, :, None], page_table=block_table, seqused=seq_lens)
    rows = q.reshape(requests, tokens // requests, heads, columns)
    mask = causal() if flag("causal", is_causal) else full()
    o, lse = _decode(rows, cache, scale=scale, mask=mask, num_splits=0, device=device)
    return o.reshape(tokens, heads, -1), lse.swapaxes(1, 2).reshape(tokens, heads)


def prefill(
    q: Any,
    k: Any,
    v: Any,
    offsets: tuple[Any, Any],
    longest: tuple[int, int],
    scale: float,
    *,
    is_causal: bool,
    out: Any = None,
    device: DeviceChoice = None,
) -> tuple[Any, Any]:
    """Attention of projected heads: of new tokens to each other, or to a part of their context.

    Args:
      q, k: [tokens, heads, 192]; v: [tokens, heads, 128].
      offsets: [requests + 1] i32 of q and of k.
      longest: no request has more queries, and keys.
      scale: of the scores.
      is_causal: whether the keys are those of the new tokens, under a causal mask aligned at the
        end; else all queries see all keys, those of the context.
      out: memory for O, or None.
      device: see `attention`.

    Returns:
      (o, lse): [tokens, heads, 128], and [heads, tokens] f32, natural logarithms.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    attend = _of_new_tokens if is_causal else _of_context
    return attend(
        q,
        k,
        v,
        cu_seqlens_q=offsets[0],
        cu_seqlens_k=offsets[1],
        max_seqlen_q=longest[0],
        max_seqlen_k=longest[1],
        softmax_scale=scale,
        causal=is_causal,
        return_softmax_lse=True,
        out=out,
        device=device,
    )
