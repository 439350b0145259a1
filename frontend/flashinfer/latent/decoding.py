"""FlashInfer's latent decoding in one call, without a plan."""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir.errors import SpecError
from attn_mlir.flashinfer.latent.operands import COLUMNS, LatentCall, checked_base
from attn_mlir.flashinfer.options import number, tensor
from attn_mlir.flashinfer.table import TRTLLM_LATENT, with_arguments
from attn_mlir.flashinfer.trtllm import one_sink
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import flag, integer
from attn_mlir.runtime.call.tensors import shape_of

torch: Any = importlib.import_module("torch")

_NAMES = {
    "scale": "bmm1_scale", "k_pages": "kv_cache", "k": "kv_cache", "q": "query",
    "page_table": "block_tables", "seqused": "seq_lens", "indices": "block_tables",
    "topk_length": "sparse_mla_top_k_lens",
}  # fmt: skip


@with_arguments(
    "query kv_cache workspace_buffer qk_nope_head_dim kv_lora_rank qk_rope_head_dim block_tables "
    "seq_lens max_seq_len sparse_mla_top_k out bmm1_scale bmm2_scale sinks "
    "skip_softmax_threshold_scale_factor enable_pdl backend is_var_seq uses_shared_paged_kv_idx "
    "lse return_lse cute_dsl_impl kv_scale_format cum_seq_lens_q max_q_len "
    "multi_ctas_kv_counter_buffer sparse_mla_top_k_lens enable_dcp cp_world cp_rank "
    "causal_seqlens_kv_global use_fp16_softmax return_lse_base",
    options=TRTLLM_LATENT,
)
def trtllm_batch_decode_with_kv_cache_mla(
    query: Any,
    kv_cache: Any,
    workspace_buffer: Any,
    qk_nope_head_dim: int,
    kv_lora_rank: int,
    qk_rope_head_dim: int,
    block_tables: Any,
    seq_lens: Any,
    max_seq_len: int,
    sparse_mla_top_k: int = 0,
    bmm1_scale: float = 1.0,
    bmm2_scale: float = 1.0,
    sparse_mla_top_k_lens: Any = None,
    return_lse_base: str | None = None,
    **options: Any,
) -> Any:
    """As `flashinfer.trtllm_batch_decode_with_kv_cache_mla`: absorbed latent attention over pages.

    Args:
      query: [batch, q_len, heads, 576], or 512 columns with a `qk_rope_head_dim` of 0; bf16 or f16,
        or e4m3 for a cache of it. The queries of a sequence are its last positions.
      kv_cache: [pages, page, 576] or [pages, 1, page, 576], of q's dtype or e4m3.
      workspace_buffer, qk_nope_head_dim, max_seq_len: not looked at.
      kv_lora_rank: 512; qk_rope_head_dim: 64 or 0.
      block_tables: [batch, columns] i32; with `sparse_mla_top_k` > 0 [batch, q_len,
        sparse_mla_top_k], numbers of rows, page x page size + offset, of which -1 is none.
      seq_lens: [batch] i32, positions of each sequence; not looked at with lists.
      sparse_mla_top_k_lens: [batch, q_len] or [batch x q_len] i32, entries of each list that count.
      bmm1_scale: of the scores; bmm2_scale: of O; numbers.
      out: [batch, q_len, heads, 512], memory for O.
      lse: [batch x q_len, heads] or [batch, q_len, heads] f32, memory for LSE.
      sinks: [heads], or a list of one such; they count in LSE.
      return_lse_base: base2, also where it is None, or basee.

    Returns:
      O [batch, q_len, heads, 512], with `return_lse` also LSE, [batch x q_len, heads] or `lse`.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    del workspace_buffer, qk_nope_head_dim, max_seq_len
    batch, queries, _, columns = tensor(query, "query", 4).shape
    integer("kv_lora_rank", kv_lora_rank, COLUMNS, COLUMNS)
    if COLUMNS + integer("qk_rope_head_dim", qk_rope_head_dim, 0, 64) != columns:
        raise SpecError(f"query has {columns} columns, not 512 and {qk_rope_head_dim} behind them")
    if len(shape := shape_of(kv_cache, "kv_cache")) == 4 and shape[1] == 1:
        kv_cache = kv_cache[:, 0]
    pool = tensor(kv_cache, "kv_cache", 3)
    top_k = integer("sparse_mla_top_k", sparse_mla_top_k, 0)
    lists: dict[str, Any] = {}
    pages: dict[str, Any] | None = {"page_table": block_tables, "seqused": seq_lens}
    if top_k:
        pages, lists = None, {"indices": tensor(block_tables, "block_tables", 3)}
        if top_k != block_tables.shape[-1]:
            raise SpecError(
                f"sparse_mla_top_k is {top_k}, lists in block_tables have {block_tables.shape[-1]} "
                "entries"
            )
        if sparse_mla_top_k_lens is not None:
            shape = shape_of(sparse_mla_top_k_lens, "sparse_mla_top_k_lens")
            if shape not in ((batch, queries), (batch * queries,)):
                raise SpecError(
                    f"sparse_mla_top_k_lens must be [{batch}, {queries}] or [{batch * queries}], "
                    f"got {list(shape)}"
                )
            lists["topk_length"] = sparse_mla_top_k_lens.reshape(batch, queries)
    elif sparse_mla_top_k_lens is not None:
        raise SpecError("sparse_mla_top_k_lens are of lists: sparse_mla_top_k must be more than 0")
    base = checked_base("return_lse_base", return_lse_base, "base2")
    scale = number("bmm1_scale", bmm1_scale, 1.0)
    call = LatentCall(scale, number("bmm2_scale", bmm2_scale, 1.0), True, base)
    out, lse = options.get("out"), options.get("lse")
    lists |= {
        "out": None if out is None else tensor(out, "out", 4).flatten(0, 1),
        "lse": lse if lse is None or len(shape_of(lse, "lse")) == 2 else lse.flatten(0, 1),
        "sinks": one_sink(options.get("sinks")),
    }
    o, sums = renamed(call.__call__, **_NAMES)(query, pool, pages, **lists)
    o = o.unflatten(0, (batch, queries)) if out is None else out
    is_wanted = flag("return_lse", options.get("return_lse", False))
    return (o, sums if lse is None else lse) if is_wanted else o
