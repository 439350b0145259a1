"""Calls of `attn_mlir`, its functions for PyTorch, and those of FlashAttention and FlashMLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attn_mlir as am
import attn_mlir.torch as at
from attn_mlir import diffusers, flash, flash_mla
from attn_mlir.flash import passes
from attn_mlir.validation.arguments.operands import (
    DIM,
    F32,
    HEADS,
    LATENT,
    LENGTHS,
    NEW,
    PAGE,
    PAGED,
    POOLS,
    Calls,
    dense,
    heads_first,
    real,
    rows,
    torch,
    whole,
)


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


CONTIGUOUS = {
    "k": real(1, 128, HEADS, DIM), "v": real(1, 128, HEADS, DIM),
    "seqused": whole(8), "batch_idx": whole(0), "leftpad": whole(0),
}  # fmt: skip
ROWS = {
    "k_pages": PAGED["k_pages"], "v_pages": PAGED["v_pages"],
    "indptr": whole(0, 1), "indices": whole(0), "last_page_len": whole(8),
}  # fmt: skip
GIVEN_BACK = {
    **{name: real(1, 8, HEADS, DIM) for name in ("o", "do")},
    "lse": real(1, HEADS, 8, dtype=F32),
}
E4M3 = {x: real(1, 8, HEADS, DIM).to(torch.float8_e4m3fn) for x in "qkv"}
SCALES = {f"{x}_descale": real(1, dtype=F32) for x in "qkv"}
MLA = {
    "q_nope": real(1, 8, HEADS, 128), "q_rope": real(1, 8, HEADS, 64), "k_nope": real(1, 8, HEADS, 128),
    "k_rope": real(1, 8, 1, 64), "v": real(1, 8, HEADS, 128),
}  # fmt: skip
SPARSE = {
    "q": real(2, 64, 576), "kv": real(8, 1, 576), "indices": whole(*range(64)).repeat(2, 1) % 8,
    "topk_length": whole(2, 2), "sinks": real(64, dtype=F32),
}  # fmt: skip

OWN: Calls = {
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
    "mla_backward": (
        lambda **x: am.mla_backward(**x, scale=1.0),
        {
            **MLA, "o": real(1, 8, HEADS, 128), "lse": GIVEN_BACK["lse"], "do": real(1, 8, HEADS, 128),
            "dlse": GIVEN_BACK["lse"], "seqused_q": whole(8), "seqused_k": whole(8),
        },
    ),
    "mla_backward, packed": (
        lambda **x: am.mla_backward(**x, scale=1.0, max_seqlen_q=8, max_seqlen_k=8),
        {
            **{name: x[0] for name, x in MLA.items()}, **LENGTHS, "o": real(8, HEADS, 128),
            "lse": real(HEADS, 8, dtype=F32), "do": real(8, HEADS, 128),
        },
    ),
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
    "diffusers.attention": (
        diffusers.attention,
        {
            **{name: real(1, 8, HEADS, DIM) for name in ("query", "key", "value")},
            "attn_mask": real(1, HEADS, 8, 8),
        },
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
    "pack_latent": (
        lambda **x: am.pack_latent(**x, kv_format="v32"),
        {"kv": real(8, 1, 576)},
    ),
}  # fmt: skip
