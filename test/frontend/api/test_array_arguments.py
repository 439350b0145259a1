"""Arrays that are not what they look like, in every array argument of every public function.

Each call of `CALLS` is right as it stands. One of its arrays is replaced by an object that stands for something
else, and the call has to be refused by the name of what it is, before anything is compiled or launched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402 # pyright: ignore
from torch.autograd import forward_ad  # noqa: E402 # pyright: ignore
from torch.nn.attention.bias import causal_lower_right  # noqa: E402 # pyright: ignore

import attn_mlir as am  # noqa: E402
import attn_mlir.torch as at  # noqa: E402
from attn_mlir import flash, flash_mla, flashinfer  # noqa: E402
from attn_mlir.api import plan as planning  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.flash import passes  # noqa: E402

HEADS, DIM, PAGE = 2, 16, 64
BF16, F32, I32 = torch.bfloat16, torch.float32, torch.int32


def real(*shape: int, dtype: Any = BF16) -> Any:
    return torch.ones(shape, dtype=dtype)


def whole(*values: int) -> Any:
    return torch.tensor(values, dtype=I32)


def dense() -> dict[str, Any]:
    return {name: real(1, 8, HEADS, DIM) for name in "qkv"}


def rows() -> dict[str, Any]:
    return {name: real(8, HEADS, DIM) for name in "qkv"}


def heads_first() -> dict[str, Any]:
    return {name: real(1, HEADS, 8, DIM) for name in ("query", "key", "value")}


def captured(function: Callable[..., Any], **options: Any) -> Any:
    """A call of attention whose score_mod reads `bias` and whose mask_mod reads `ids`."""
    bias, ids = options.pop("bias"), options.pop("ids")
    return function(
        **options,
        score_mod=lambda score, b, h, q, k: score + bias[h],
        mask_mod=lambda b, h, q, k: ids[q] == ids[k],
    )


def cached(function: Callable[..., Any], kind: Any, names: tuple[str, ...]) -> Callable[..., Any]:
    """A function whose cache of this kind is made of the arguments of these names."""

    def call(**options: Any) -> Any:
        cache = kind(**{name: options.pop(name) for name in names if name in options})
        first = {"q": options.pop("q")} if "q" in options else {}
        return function(*first.values(), cache, **options)

    return call


def decoded(**arrays: Any) -> Any:
    """FlashMLA's decoding."""
    metadata, _ = flash_mla.get_mla_metadata()
    return flash_mla.flash_mla_with_kvcache(
        **arrays, head_dim_v=512, tile_scheduler_metadata=metadata
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


SCRATCH = torch.empty(0, dtype=torch.uint8)


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


CONTIGUOUS = {
    "k": real(1, 128, HEADS, DIM), "v": real(1, 128, HEADS, DIM),
    "seqused": whole(8), "batch_idx": whole(0), "leftpad": whole(0),
}  # fmt: skip
PAGED = {
    "k_pages": real(2, PAGE, HEADS, DIM), "v_pages": real(2, PAGE, HEADS, DIM),
    "page_table": whole(0).reshape(1, 1), "seqused": whole(8),
}  # fmt: skip
ROWS = {
    "k_pages": PAGED["k_pages"], "v_pages": PAGED["v_pages"],
    "indptr": whole(0, 1), "indices": whole(0), "last_page_len": whole(8),
}  # fmt: skip
POOLS = {name: PAGED[name] for name in ("k_pages", "v_pages")}
LATENT = {
    "k_pages": real(2, PAGE, 1, 576),
    "page_table": whole(0).reshape(1, 1),
    "seqused": whole(8),
}
GIVEN_BACK = {
    **{name: real(1, 8, HEADS, DIM) for name in ("o", "do")},
    "lse": real(1, HEADS, 8, dtype=F32),
}
LENGTHS = {"cu_seqlens_q": whole(0, 8), "cu_seqlens_k": whole(0, 8)}
E4M3 = {x: real(1, 8, HEADS, DIM).to(torch.float8_e4m3fn) for x in "qkv"}
SCALES = {f"{x}_descale": real(1, dtype=F32) for x in "qkv"}
NEW = {"k_new": real(2, HEADS, DIM), "v_new": real(2, HEADS, DIM)}
MLA = {
    "q_nope": real(1, 8, HEADS, 128), "q_rope": real(1, 8, HEADS, 64), "k_nope": real(1, 8, HEADS, 128),
    "k_rope": real(1, 8, 1, 64), "v": real(1, 8, HEADS, 128),
}  # fmt: skip
SPARSE = {
    "q": real(2, 64, 576), "kv": real(8, 1, 576), "indices": whole(*range(64)).repeat(2, 1) % 8,
    "topk_length": whole(2, 2), "sinks": real(64, dtype=F32),
}  # fmt: skip

CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "attention": (am.attention, {**dense(), "sinks": real(HEADS), "out": real(1, 8, HEADS, DIM)}),
    "attention, padded": (
        am.attention,
        {**dense(), "seqused_q": whole(8), "seqused_k": whole(8)},
    ),
    "attention, packed": (am.attention, {**rows(), **LENGTHS}),
    "attention, cached": (am.attention, {**dense(), "cache_seqlens": whole(0)}),
    "attention, shard": (
        lambda **x: am.attention(**dense(), **x),
        {"q_offset": whole(0), "k_offset": whole(0)},
    ),
    "attention of 8 bits": (am.attention, {**E4M3, **SCALES}),
    "attention, captured": (
        lambda **x: captured(am.attention, **x),
        {**dense(), "bias": real(HEADS, dtype=F32), "ids": whole(*range(8))},
    ),
    "plan": (am.plan, dense()),
    "ContiguousKV": (
        cached(am.attention, am.ContiguousKV, tuple(CONTIGUOUS)),
        {"q": real(1, 8, HEADS, DIM), **CONTIGUOUS},
    ),
    "PagedKV": (
        cached(am.attention, am.PagedKV, tuple(PAGED)),
        {"q": real(1, 8, HEADS, DIM), **PAGED},
    ),
    "PagedKV by rows": (
        cached(am.attention, am.PagedKV, tuple(ROWS)),
        {"q": real(1, 8, HEADS, DIM), **ROWS},
    ),
    "append_kv": (
        cached(am.append_kv, am.PagedKV, ("k_pages", "v_pages", "page_table")),
        {**POOLS, **NEW, "page_table": PAGED["page_table"], "batch_indices": whole(0, 0), "positions": whole(0, 1)},
    ),
    "append_kv by slots": (
        lambda **x: cached(am.append_kv, am.PagedKV, ("page_table", *POOLS))(**x, page_table=PAGED["page_table"]),
        {**POOLS, **NEW, "slot_mapping": whole(0, 1)},
    ),
    "attention_backward": (
        am.attention_backward,
        {**dense(), **GIVEN_BACK, "dlse": real(1, HEADS, 8, dtype=F32)},
    ),
    "mla": (lambda **x: am.mla(**x, scale=1.0), MLA),
    "sparse_mla": (lambda **x: am.sparse_mla(**x, scale=1.0), SPARSE),
    "mla_decode": (
        lambda **x: cached(am.mla_decode, am.PagedKV, tuple(LATENT))(**x, scale=1.0),
        {"q": real(1, 1, 64, 576), **LATENT, "sinks": real(64, dtype=F32)},
    ),
    "scaled_dot_product_attention": (
        at.scaled_dot_product_attention,
        {**heads_first(), "attn_mask": real(8, 8)},
    ),
    "flex_attention": (
        lambda **x: captured(at.flex_attention, **x),
        {**heads_first(), "bias": real(HEADS, dtype=F32), "ids": whole(*range(8))},
    ),
    "flash_attn_func": (flash.flash_attn_func, dense()),
    "_flash_attn_forward": (lambda **x: passes.flash_attn_forward(**x, softmax_scale=1.0), dense()),
    "_flash_attn_backward": (
        lambda **x: passes.flash_attn_backward(**x, softmax_scale=1.0),
        {**dense(), "dout": real(1, 8, HEADS, DIM), "out": real(1, 8, HEADS, DIM),
         "softmax_lse": real(1, HEADS, 8, dtype=F32),
         **{f"d{x}": real(1, 8, HEADS, DIM) for x in "qkv"}},
    ),
    "_flash_attn_varlen_forward": (
        lambda **x: passes.flash_attn_varlen_forward(**x, max_seqlen_q=8, max_seqlen_k=8, softmax_scale=1.0),
        {**rows(), **LENGTHS, "seqused_k": whole(8)},
    ),
    "_flash_attn_varlen_backward": (
        lambda **x: passes.flash_attn_varlen_backward(**x, max_seqlen_q=8, max_seqlen_k=8, softmax_scale=1.0),
        {**rows(), **LENGTHS, "dout": real(8, HEADS, DIM), "out": real(8, HEADS, DIM),
         "softmax_lse": real(HEADS, 8, dtype=F32), **{f"d{x}": real(8, HEADS, DIM) for x in "qkv"}},
    ),
    "flash_attn_qkvpacked_func": (
        flash.flash_attn_qkvpacked_func,
        {"qkv": real(1, 8, 3, HEADS, DIM)},
    ),
    "flash_attn_kvpacked_func": (
        flash.flash_attn_kvpacked_func,
        {"q": real(1, 8, HEADS, DIM), "kv": real(1, 8, 2, HEADS, DIM)},
    ),
    "flash_attn_varlen_func": (
        flash.flash_attn_varlen_func,
        {**rows(), **LENGTHS, "seqused_q": whole(8), "seqused_k": whole(8)},
    ),
    "flash_attn_varlen_qkvpacked_func": (
        flash.flash_attn_varlen_qkvpacked_func,
        {"qkv": real(8, 3, HEADS, DIM), "cu_seqlens": whole(0, 8)},
    ),
    "flash_attn_varlen_kvpacked_func": (
        flash.flash_attn_varlen_kvpacked_func,
        {"q": real(8, HEADS, DIM), "kv": real(8, 2, HEADS, DIM), **LENGTHS},
    ),
    "flash_attn_with_kvcache": (
        flash.flash_attn_with_kvcache,
        {
            "q": real(1, 1, HEADS, DIM), "k_cache": real(1, 128, HEADS, DIM),
            "v_cache": real(1, 128, HEADS, DIM), "cache_seqlens": whole(8),
            "learnable_sink": real(HEADS),
        },
    ),
    "flash_attn_combine": (
        flash.flash_attn_combine,
        {
            "out_partial": real(2, 1, 8, HEADS, DIM, dtype=F32),
            "lse_partial": real(2, 1, 8, HEADS, dtype=F32).transpose(-1, -2).contiguous().transpose(-1, -2),
        },
    ),
    "merge_attn_states": (
        flash.merge_attn_states,
        {
            "output": real(8, HEADS, DIM), "prefix_output": real(8, HEADS, DIM),
            "prefix_lse": real(HEADS, 8, dtype=F32), "suffix_output": real(8, HEADS, DIM),
            "suffix_lse": real(HEADS, 8, dtype=F32),
        },
    ),
    "reshape_and_cache_flash": (
        lambda **x: flash.reshape_and_cache_flash(**x, kv_cache_dtype="auto", k_scale=None, v_scale=None),
        {
            "key": real(8, HEADS, DIM), "value": real(8, HEADS, DIM),
            "key_cache": real(1, 128, HEADS, DIM), "value_cache": real(1, 128, HEADS, DIM),
            "slot_mapping": whole(0, 1, 2, 3, 4, 5, 6, 7),
        },
    ),
    "flash_mla.flash_attn_varlen_func": (
        lambda **x: flash_mla.flash_attn_varlen_func(**x, max_seqlen_qo=8, max_seqlen_kv=8),
        {**rows(), "cu_seqlens_qo": whole(0, 8), "cu_seqlens_kv": whole(0, 8)},
    ),
    "flash_mla_sparse_fwd": (
        lambda **x: flash_mla.flash_mla_sparse_fwd(**x, sm_scale=1.0),
        {
            "q": SPARSE["q"], "kv": SPARSE["kv"], "indices": SPARSE["indices"][:, None],
            "attn_sink": SPARSE["sinks"], "topk_length": SPARSE["topk_length"],
        },
    ),
    "flash_mla_with_kvcache": (
        decoded,
        {
            "q": real(1, 1, 64, 576), "k_cache": real(2, PAGE, 1, 576),
            "block_table": whole(0).reshape(1, 1), "cache_seqlens": whole(8),
        },
    ),
    "single_decode_with_kv_cache": (
        flashinfer.single_decode_with_kv_cache,
        {**rows(), "q": real(HEADS, DIM)},
    ),
    "single_prefill_with_kv_cache": (flashinfer.single_prefill_with_kv_cache, rows()),
    "BatchDecodeWithPagedKVCacheWrapper": (
        run_decode,
        {
            "q": real(1, HEADS, DIM), "k_pages": PAGED["k_pages"], "v_pages": PAGED["v_pages"],
            "indptr": whole(0, 1), "indices": whole(0), "last": whole(8),
        },
    ),
    "BatchPrefillWithPagedKVCacheWrapper": (
        run_paged,
        {
            "q": real(8, HEADS, DIM), "k_pages": PAGED["k_pages"], "v_pages": PAGED["v_pages"],
            "qo_indptr": whole(0, 8), "indptr": whole(0, 1), "indices": whole(0), "last": whole(8),
        },
    ),
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
            "positions": whole(0, 1), "k_pages": PAGED["k_pages"], "v_pages": PAGED["v_pages"],
            "kv_indices": whole(0), "kv_indptr": whole(0, 1), "kv_last_page_len": whole(8),
        },
    ),
    "flash_mla.flash_attn_varlen_qkvpacked_func": (
        lambda **x: flash_mla.flash_attn_varlen_qkvpacked_func(**x, max_seqlen=8, head_dim_qk=DIM),
        {"qkv": real(8, HEADS, 3 * DIM), "cu_seqlens": whole(0, 8)},
    ),
    "flash_mla.flash_attn_varlen_kvpacked_func": (
        lambda **x: flash_mla.flash_attn_varlen_kvpacked_func(
            **x, max_seqlen_qo=8, max_seqlen_kv=8, head_dim_qk=DIM
        ),
        {
            "q": real(8, HEADS, DIM), "kv": real(8, HEADS, 2 * DIM),
            "cu_seqlens_qo": whole(0, 8), "cu_seqlens_kv": whole(0, 8),
        },
    ),
    "MultiLevelCascadeAttentionWrapper": (
        run_cascade,
        {
            "q": real(8, HEADS, DIM), "k_pages": PAGED["k_pages"], "v_pages": PAGED["v_pages"],
            "qo_indptr": whole(0, 8), "indptr": whole(0, 1), "indices": whole(0), "last": whole(8),
        },
    ),
    "BatchAttention": (
        run_batch,
        {
            "q": real(8, HEADS, DIM), **POOLS,
            "qo_indptr": whole(0, 8), "indptr": whole(0, 1), "indices": whole(0), "lengths": whole(8),
        },
    ),
    "BatchAttentionWithAttentionSinkWrapper": (
        run_with_sinks,
        {
            "q": real(8, HEADS, DIM), **POOLS, "sink": real(HEADS, dtype=F32),
            "qo_indptr": whole(0, 8), "indptr": whole(0, 1), "indices": whole(0), "last": whole(8),
        },
    ),
    "BatchDecodeWithSharedPrefixPagedKVCacheWrapper": (
        run_shared("Decode"),
        {
            "q": real(1, HEADS, DIM), "k_shared": real(8, HEADS, DIM), "v_shared": real(8, HEADS, DIM),
            **POOLS, "indptr": whole(0, 1), "indices": whole(0), "last": whole(8),
        },
    ),
    "BatchPrefillWithSharedPrefixPagedKVCacheWrapper": (
        run_shared("Prefill"),
        {
            "q": real(8, HEADS, DIM), "k_shared": real(8, HEADS, DIM), "v_shared": real(8, HEADS, DIM),
            **POOLS, "qo_indptr": whole(0, 8),
            "indptr": whole(0, 1), "indices": whole(0), "last": whole(8),
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
    "flash_mla_with_kvcache_fp8": (
        lambda **x: flash_mla.flash_mla_with_kvcache_fp8(
            **x, head_dim_v=512, tile_scheduler_metadata=None, num_splits=None
        ),
        {
            "q": real(1, 1, 64, 576), "k_cache": LATENT["k_pages"].to(torch.float8_e4m3fn),
            "block_table": whole(0).reshape(1, 1), "cache_seqlens": whole(8),
            "descale_q": real(1, dtype=F32), "descale_k": real(1, dtype=F32),
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
    "pack_latent": (
        lambda **x: am.pack_latent(**x, kv_format="v32"),
        {"kv": real(8, 1, 576)},
    ),
}  # fmt: skip


class Named(torch.Tensor):
    """A subclass that says nothing about what it means."""


def subclass(tensor: Any) -> Any:
    return tensor.as_subclass(Named)


def bias(_: Any) -> Any:
    return causal_lower_right(8, 8)


def sparse(tensor: Any) -> Any:
    return torch.zeros_like(tensor, dtype=F32).to(tensor.dtype).to_sparse()


def nested(tensor: Any) -> Any:
    return torch.nested.nested_tensor(list(tensor))


def jagged(tensor: Any) -> Any:
    return torch.nested.nested_tensor([tensor[:1]] * 2, layout=torch.jagged)


def dual(tensor: Any) -> Any:
    return forward_ad.make_dual(tensor, torch.ones_like(tensor))


def wanted(tensor: Any) -> Any:
    return tensor.detach().requires_grad_()


def fake(tensor: Any) -> Any:
    return FakeTensorMode().from_tensor(tensor)


NOT_ALL_NESTED = "must be nested, or none of them|must be .batch, heads, ragged, head_dim."
KINDS: dict[Callable[..., Any], str] = {
    subclass: "Named, which means more than its memory holds",
    bias: "CausalBias, which means more than its memory holds",
    jagged: f"NestedTensor, which means more than its memory holds|{NOT_ALL_NESTED}",
    sparse: "must be a dense tensor, got one of layout torch.sparse_coo",
    nested: f"must be a dense tensor, got one nested|{NOT_ALL_NESTED}|only torch.jagged",
    dual: "has a tangent",
    wanted: "requires a gradient",
    fake: "no elements here|convert all Tensors to FakeTensors|DataDependentOutputException",
}


OPERANDS = (
    *("q", "k", "v", "qkv", "kv", "query", "key", "value"),
    *("q_nope", "q_rope", "k_nope", "k_rope"),
)
TRAINED = (
    *("attention, padded", "attention, packed", "attention, captured"),
    *("scaled_dot_product_attention", "flex_attention", "mla"),
    *(x for x in CALLS if "flash_attn_" in x),
)


def cases() -> Iterator[Any]:
    for name, (_, arrays) in CALLS.items():
        for argument in arrays:
            yield pytest.param(name, argument, id=f"{name}-{argument}")


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **_options: object) -> None:
        raise AssertionError("a kernel would be compiled")

    monkeypatch.setattr(planning, "compile", refuse)


@pytest.mark.parametrize(("name", "argument"), cases())
def test_refused_by_name(name: str, argument: str) -> None:
    function, arrays = CALLS[name]
    missed: dict[str, str] = {}
    for make, said in KINDS.items():
        tensor = arrays[argument]
        if make in (dual, wanted) and not tensor.is_floating_point():
            continue  # integers have no derivatives
        if make in (sparse, nested) and tensor.dtype == torch.float8_e4m3fn:
            continue  # PyTorch makes none of 8 bits
        if make is bias and argument == "attn_mask":
            continue  # what it is for
        if make is wanted and name in TRAINED and argument in OPERANDS:
            continue  # autograd gets it
        if make is fake and (argument in ("q", "query", "qkv", "out") or name == "plan"):
            continue  # the whole call is traced then, or nothing is launched
        with torch.enable_grad(), forward_ad.dual_level() if make is dual else nullcontext():
            try:
                function(**{**arrays, argument: make(tensor)})
            except Exception as error:
                is_typed = (
                    isinstance(error, SpecError) or make is fake
                )  # PyTorch refuses some itself
                if not (is_typed and re.search(said, f"{type(error).__name__}: {error}")):
                    missed[make.__name__] = f"{type(error).__name__}: {error}"
            else:
                missed[make.__name__] = "taken"
    assert not missed


def mapped(call: Callable[[Any], Any], tensor: Any) -> None:
    torch.vmap(call, out_dims=None)(tensor[None])


def pushed(call: Callable[[Any], Any], tensor: Any) -> None:
    torch.func.jvp(call, (tensor,), (tensor,))


def pulled(call: Callable[[Any], Any], tensor: Any) -> None:
    torch.func.vjp(call, tensor)


def differentiated(call: Callable[[Any], Any], tensor: Any) -> None:
    torch.func.jacfwd(call)(tensor)


WAYS: dict[Callable[..., Any], str] = {
    mapped: "no rule for torch.vmap|no elements here|nor transformed by torch.func: leave it out",
    pushed: "has a tangent",
    pulled: "requires a gradient",
    differentiated: "has a tangent",
}


@pytest.mark.parametrize(("name", "argument"), cases())
def test_transformed_by_name(name: str, argument: str) -> None:
    """What `torch.func` wraps has the class of a plain tensor."""
    function, arrays = CALLS[name]
    missed: dict[str, str] = {}
    for way, said in WAYS.items():
        tensor = arrays[argument]
        if way is not mapped and not tensor.is_floating_point():
            continue
        if way is differentiated and tensor.numel() > 1000:
            continue  # a column for each element
        if way is mapped and name in ("plan", "get_batch_indices_positions"):
            continue  # launch nothing
        if name == "attention":
            said += "|out cannot be recorded"  # which is in this call
        if name == "BatchAttention":
            said += "|paged_kv_indptr is .* that is traced"  # by what plan computes
        if way is mapped and name in ("scaled_dot_product_attention", "flex_attention"):
            said = "a kernel would be compiled"  # which have a rule
        try:
            way(lambda x, argument=argument: function(**{**arrays, argument: x}), tensor)
        except Exception as error:
            if not re.search(said, f"{type(error).__name__}: {error}"):
                missed[way.__name__] = f"{type(error).__name__}: {error}"
        else:
            missed[way.__name__] = "taken"
    assert not missed


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_right(name: str) -> None:
    """So that what is refused above is refused for the one array."""
    function, arrays = CALLS[name]
    try:
        function(**arrays)
    except AssertionError as error:
        assert str(error) == "a kernel would be compiled"


def test_every_function_is_called() -> None:
    """Those of adapters by their lists of names; of `attn_mlir` those that take arrays."""
    told = {name.partition(",")[0].rpartition(".")[2].split()[0] for name in CALLS}
    public = {*flash.__all__, *flash_mla.__all__, *flashinfer.__all__}
    public |= {
        "attention",
        "attention_backward",
        "append_kv",
        "mla",
        "sparse_mla",
        "mla_decode",
        "plan",
        "pack_latent",
    }
    public |= {"scaled_dot_product_attention", "flex_attention"}
    without_operands = {"FlashMLASchedMeta", "get_mla_metadata", "get_scheduler_metadata"}
    without_operands |= {"get_mla_metadata_dense_fp8"}
    in_graphs = {"CUDAGraphBatchDecodeWithPagedKVCacheWrapper", "fast_decode_plan"}
    assert public - told == without_operands | in_graphs


def test_subclasses_of_numpy() -> None:
    q = np.ones((1, 8, HEADS, DIM), np.float16)
    with pytest.raises(
        SpecError, match=r"^v is a .*\.Named, which means more.*pass np.asarray\(v\)"
    ):
        am.attention(q, q, q.view(type("Named", (np.ndarray,), {})))
