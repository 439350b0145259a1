"""Calls of the functions and wrappers of FlashInfer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attn_mlir import flashinfer
from attn_mlir.validation.arguments.operands import (
    BF16,
    DIM,
    F32,
    HEADS,
    LATENT,
    NEW,
    PAGE,
    POOLS,
    SCRATCH,
    Calls,
    real,
    rows,
    torch,
    whole,
)


def run_decode(q: Any, k_pages: Any, v_pages: Any, indptr: Any, indices: Any, last: Any) -> Any:
    """FlashInfer's decoding."""
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(0, dtype=torch.uint8))
    wrapper.plan(indptr, indices, last, HEADS, HEADS, DIM, PAGE, q_data_type=BF16)
    return wrapper.run(q, (k_pages, v_pages))


def run_paged(
    q: Any, k_pages: Any, v_pages: Any, qo_indptr: Any, indptr: Any, indices: Any, last: Any
) -> Any:
    """FlashInfer's prefill from pages."""
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(torch.empty(0, dtype=torch.uint8))
    wrapper.plan(qo_indptr, indptr, indices, last, HEADS, HEADS, DIM, PAGE, q_data_type=BF16)
    return wrapper.run(q, (k_pages, v_pages))


def run_cascade(
    q: Any, k_pages: Any, v_pages: Any, qo_indptr: Any, indptr: Any, indices: Any, last: Any
) -> Any:
    """FlashInfer's cascade, of one level."""
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(1, torch.empty(0, dtype=torch.uint8))
    lists = ([qo_indptr], [indptr], [indices], [last])
    wrapper.plan(*lists, HEADS, HEADS, DIM, PAGE, q_data_type=BF16)
    return wrapper.run(q, (k_pages, v_pages))


def run_ragged(q: Any, k: Any, v: Any, qo_indptr: Any, kv_indptr: Any) -> Any:
    """FlashInfer's prefill of packed sequences."""
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(torch.empty(0, dtype=torch.uint8))
    wrapper.plan(qo_indptr, kv_indptr, HEADS, HEADS, DIM, q_data_type=BF16)
    return wrapper.run(q, k, v)


def run_batch(
    q: Any, k_pages: Any, v_pages: Any, qo_indptr: Any, indptr: Any, indices: Any, lengths: Any
) -> Any:
    """FlashInfer's attention of mixed batches."""
    wrapper = flashinfer.BatchAttention(device="cpu")
    wrapper.plan(qo_indptr, indptr, indices, lengths, HEADS, HEADS, DIM, DIM, PAGE)
    return wrapper.run(q, (k_pages, v_pages))


def run_with_sinks(
    q: Any, k_pages: Any, v_pages: Any, sink: Any, *, qo_indptr: Any, indptr: Any, indices: Any,
    last: Any,
) -> Any:  # fmt: skip
    """FlashInfer's prefill from pages, with sinks."""
    wrapper = flashinfer.BatchAttentionWithAttentionSinkWrapper(
        SCRATCH, q_data_type=BF16, head_dim_qk=DIM, head_dim_vo=DIM
    )
    wrapper.plan(qo_indptr, indptr, indices, last, HEADS, HEADS, DIM, PAGE, q_data_type=BF16)
    return wrapper.run(q, (k_pages, v_pages), sink, DIM**-0.5)


def run_shared(kind: str) -> Callable[..., Any]:
    """FlashInfer's attention to a prefix that sequences share and to pages of their own."""

    def run(q: Any, k_shared: Any, v_shared: Any, k_pages: Any, v_pages: Any, **plan: Any) -> Any:
        wrapper: Any = getattr(flashinfer, f"Batch{kind}WithSharedPrefixPagedKVCacheWrapper")
        wrapper = wrapper(SCRATCH)
        wrapper.begin_forward(*plan.values(), HEADS, HEADS, DIM, PAGE, data_type=BF16)
        return wrapper.forward(q, k_shared, v_shared, (k_pages, v_pages))

    return run


def run_latent(
    q_nope: Any, q_pe: Any, ckv: Any, kpe: Any, *,
    qo_indptr: Any, indptr: Any, indices: Any, lengths: Any,
) -> Any:  # fmt: skip
    """FlashInfer's decoding over latent rows."""
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(SCRATCH)
    sizes = (64, 512, 64, PAGE, False, 1.0, BF16, BF16)
    wrapper.plan(qo_indptr, indptr, indices, lengths, *sizes)
    return wrapper.run(q_nope, q_pe, ckv, kpe)


LISTS = {"indptr": whole(0, 1), "indices": whole(0), "last": whole(8)}  # of one sequence's pages
PREFILL = {"q": real(8, HEADS, DIM), **POOLS, "qo_indptr": whole(0, 8), **LISTS}
FLASHINFER: Calls = {
    "single_decode_with_kv_cache": (
        flashinfer.single_decode_with_kv_cache,
        {**rows(), "q": real(HEADS, DIM)},
    ),
    "single_prefill_with_kv_cache": (flashinfer.single_prefill_with_kv_cache, rows()),
    "BatchDecodeWithPagedKVCacheWrapper": (
        run_decode,
        {"q": real(1, HEADS, DIM), **POOLS, **LISTS},
    ),
    "BatchPrefillWithPagedKVCacheWrapper": (run_paged, PREFILL),
    "BatchPrefillWithRaggedKVCacheWrapper": (
        run_ragged,
        {**rows(), "qo_indptr": whole(0, 8), "kv_indptr": whole(0, 8)},
    ),
    "append_paged_kv_cache": (
        lambda k_pages, v_pages, **x: flashinfer.append_paged_kv_cache(
            **x, paged_kv_cache=(k_pages, v_pages)
        ),
        {
            "append_key": NEW["k_new"], "append_value": NEW["v_new"], "batch_indices": whole(0, 0),
            "positions": whole(0, 1), **POOLS,
            "kv_indices": whole(0), "kv_indptr": whole(0, 1), "kv_last_page_len": whole(8),
        },
    ),
    "MultiLevelCascadeAttentionWrapper": (run_cascade, PREFILL),
    "BatchAttention": (
        run_batch,
        {
            "q": real(8, HEADS, DIM), **POOLS,
            "qo_indptr": whole(0, 8), "indptr": whole(0, 1), "indices": whole(0), "lengths": whole(8),
        },
    ),
    "BatchAttentionWithAttentionSinkWrapper": (
        run_with_sinks,
        {**PREFILL, "sink": real(HEADS, dtype=F32)},
    ),
    "BatchDecodeWithSharedPrefixPagedKVCacheWrapper": (
        run_shared("Decode"),
        {
            "q": real(1, HEADS, DIM), "k_shared": real(8, HEADS, DIM), "v_shared": real(8, HEADS, DIM),
            **POOLS, **LISTS,
        },
    ),
    "BatchPrefillWithSharedPrefixPagedKVCacheWrapper": (
        run_shared("Prefill"),
        {
            "q": real(8, HEADS, DIM), "k_shared": real(8, HEADS, DIM), "v_shared": real(8, HEADS, DIM),
            **POOLS, "qo_indptr": whole(0, 8), **LISTS,
        },
    ),
    "BatchMLAPagedAttentionWrapper": (
        run_latent,
        {
            "q_nope": real(1, 64, 512), "q_pe": real(1, 64, 64),
            "ckv": real(2, PAGE, 512), "kpe": real(2, PAGE, 64),
            "qo_indptr": whole(0, 1), "indptr": whole(0, 1), "indices": whole(0), "lengths": whole(8),
        },
    ),
    "trtllm_batch_decode_with_kv_cache": (
        lambda k_pages, v_pages, **x: flashinfer.trtllm_batch_decode_with_kv_cache(
            **x, kv_cache=(k_pages, v_pages), workspace_buffer=SCRATCH, max_seq_len=8,
            kv_layout="NHD",
        ),
        {
            "query": real(1, HEADS, DIM), **POOLS,
            "block_tables": whole(0).reshape(1, 1), "seq_lens": whole(8),
        },
    ),
    "trtllm_batch_context_with_kv_cache": (
        lambda k_pages, v_pages, **x: flashinfer.trtllm_batch_context_with_kv_cache(
            **x, kv_cache=(k_pages, v_pages), workspace_buffer=SCRATCH, max_q_len=8, max_kv_len=8,
            bmm1_scale=1.0, bmm2_scale=1.0, batch_size=1, cum_seq_lens_kv=whole(0, 8),
            kv_layout="NHD",
        ),
        {
            "query": real(8, HEADS, DIM), **POOLS, "block_tables": whole(0).reshape(1, 1),
            "seq_lens": whole(8), "cum_seq_lens_q": whole(0, 8),
        },
    ),
    "trtllm_batch_decode_with_kv_cache_mla": (
        lambda **x: flashinfer.trtllm_batch_decode_with_kv_cache_mla(
            **x, workspace_buffer=SCRATCH, qk_nope_head_dim=128, kv_lora_rank=512,
            qk_rope_head_dim=64, max_seq_len=8,
        ),
        {
            "query": real(1, 1, 64, 576), "kv_cache": LATENT["k_pages"][:, :, 0],
            "block_tables": whole(0).reshape(1, 1), "seq_lens": whole(8),
        },
    ),
    "append_paged_mla_kv_cache": (
        flashinfer.append_paged_mla_kv_cache,
        {
            "append_ckv": real(2, 512), "append_kpe": real(2, 64), "batch_indices": whole(0, 0),
            "positions": whole(0, 1), "ckv_cache": real(2, PAGE, 512), "kpe_cache": real(2, PAGE, 64),
            "kv_indices": whole(0), "kv_indptr": whole(0, 1), "kv_last_page_len": whole(8),
        },
    ),
    "get_batch_indices_positions": (
        lambda **x: flashinfer.get_batch_indices_positions(**x, nnz=2),
        {"append_indptr": whole(0, 2), "seq_lens": whole(8)},
    ),
    "merge_state": (
        flashinfer.merge_state,
        {
            "v_a": real(8, HEADS, DIM), "s_a": real(8, HEADS, dtype=F32),
            "v_b": real(8, HEADS, DIM), "s_b": real(8, HEADS, dtype=F32),
        },
    ),
    "merge_state_in_place": (
        flashinfer.merge_state_in_place,
        {
            "v": real(8, HEADS, DIM), "s": real(8, HEADS, dtype=F32),
            "v_other": real(8, HEADS, DIM), "s_other": real(8, HEADS, dtype=F32),
        },
    ),
    "merge_states": (
        flashinfer.merge_states,
        {"v": real(8, 2, HEADS, DIM), "s": real(8, 2, HEADS, dtype=F32)},
    ),
}  # fmt: skip
