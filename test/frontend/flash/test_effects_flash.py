"""Every argument of FlashAttention's and FlashMLA's names does something, says nothing, or is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import flash, flash_mla
from attn_mlir.validation.effects import (
    Change,
    Subject,
    effect_tests,
    parameters,
)
from attn_mlir.validation.numerics.operands import i32

BF16: Any = ml_dtypes.bfloat16
E4M3: Any = ml_dtypes.float8_e4m3fn
EMULATOR = am.EmulatorDevice(seed=3)
ON = {"device": Change(EMULATOR, every=True), "stream": Change(7, every=True)}
BATCH, SQ, SK, HEADS, KV, D = 2, 3, 70, 4, 2, 64
TOTAL_Q, TOTAL_K = BATCH * SQ, BATCH * SK
CU_Q, CU_K = i32(0, 2, TOTAL_Q), i32(0, 30, TOTAL_K)
LENGTHS, TABLE = i32(20, 33), i32([0, 1], [2, 3])


def normal(*shape: int, seed: int = 0, dtype: Any = BF16) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def ones(*shape: int, value: float = 1.0) -> Any:
    return np.full(shape, value, np.float32)


def changed(right: Mapping[str, Any], *names: str) -> dict[str, Change]:
    """Other elements for these operands."""
    return {name: Change(normal(*right[name].shape, seed=9)) for name in names}


def meant_otherwise(*names: str) -> dict[str, Change]:
    """Values of options that would have to do something."""
    return {
        name: Change(True if name == "rotary_interleaved" else 3, refused=True) for name in names
    }


Q, K, V = normal(BATCH, SQ, HEADS, D), normal(BATCH, SK, KV, D), normal(BATCH, SK, KV, D, seed=1)
DENSE = {"q": Q, "k": K, "v": V}
RAGGED = {
    "q": normal(TOTAL_Q, HEADS, D),
    "k": normal(TOTAL_K, KV, D),
    "v": normal(TOTAL_K, KV, D, seed=1),
    "cu_seqlens_q": CU_Q,
    "cu_seqlens_k": CU_K,
    "max_seqlen_q": 5,
    "max_seqlen_k": 120,
}
SCORES = {
    "softmax_scale": Change(0.5),
    "causal": Change(True),
    "window_size": Change((5, 2)),
    "softcap": Change(2.0),
}
PASSED = (
    "attention_chunk",
    "learnable_sink",
    "s_aux",
    "sinks",
    "num_splits",
    "sm_margin",
    "return_lse",
    "return_softmax_lse",
    "out",
    "device",
    "stream",
)
FACTORS = ("q_descale", "k_descale", "v_descale")
SAYS_NOTHING = {
    "deterministic": Change(True, nothing=True),
    "rotary_interleaved": Change(False, nothing=True),
    "disable_scheduler_metadata": Change(True, nothing=True),
    "pack_gqa": Change(True, nothing=True),
    "scheduler_metadata": Change(i32(0), nothing=True),
    "fa_version": Change(3, nothing=True),
    "ver": Change(4, nothing=True),
}
BY_POSITION = {
    **SCORES,
    **meant_otherwise("dropout_p"),
    "alibi_slopes": Change(ones(HEADS)),
    "return_attn_probs": Change(True),
    "deterministic": SAYS_NOTHING["deterministic"],
}


POSITIONS = ("q", "k", "v", *BY_POSITION)


def options(out: tuple[int, ...], narrow: Mapping[str, Any]) -> dict[str, Change]:
    """Changes of what signatures do not name.

    Args:
      out: shape of O.
      narrow: operands of 8 bits, with what belongs to them.
    """
    factors = {name: ones(1) for name in FACTORS}
    others = set(parameters(flash.flash_attn_func)) - {*POSITIONS, *PASSED, *FACTORS, *SAYS_NOTHING}
    return {
        "attention_chunk": Change(16),
        "learnable_sink": Change(ones(HEADS)),
        "s_aux": Change(ones(HEADS)),
        "sinks": Change(ones(HEADS)),
        "num_splits": Change(2),
        "sm_margin": Change(2, every=True),
        "return_lse": Change(True),
        "return_softmax_lse": Change(True),
        "out": Change(np.zeros(out, BF16)),
        **{name: Change(ones(1, value=2), {**narrow, **factors}) for name in FACTORS},
        **meant_otherwise(*sorted(others)),
        **{name: change for name, change in SAYS_NOTHING.items() if name != "deterministic"},
        **ON,
    }


def narrowed(right: Mapping[str, Any]) -> dict[str, Any]:
    """The same operands with elements of 8 bits."""
    return {n: x.astype(E4M3) if getattr(x, "dtype", None) == BF16 else x for n, x in right.items()}


def packed(right: Mapping[str, Any], out: tuple[int, ...], **changes: Change) -> dict[str, Change]:
    """Changes of a function of FlashAttention's."""
    return {**BY_POSITION, **options(out, narrowed(right)), **changes}


DENSE_O, RAGGED_O = (BATCH, SQ, HEADS, D), (TOTAL_Q, HEADS, D)
QKV, KV_PACKED = (
    {"qkv": normal(BATCH, SK, 3, HEADS, D)},
    {"q": Q, "kv": normal(BATCH, SK, 2, KV, D)},
)
RAGGED_QKV = {"qkv": normal(TOTAL_K, 3, HEADS, D), "cu_seqlens": CU_K, "max_seqlen": 120}
RAGGED_KV = {
    **{n: RAGGED[n] for n in ("q", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")},
    "kv": normal(TOTAL_K, 2, KV, D),
}
OFFSETS = {
    "cu_seqlens_q": Change(i32(0, 3, TOTAL_Q)),
    "cu_seqlens_k": Change(i32(0, 31, TOTAL_K)),
    "max_seqlen_q": Change(6),
    "max_seqlen_k": Change(121),
}
COMBINE = {
    "out_partial": ones(3, BATCH, SQ, HEADS, D),
    "lse_partial": ones(3, BATCH, HEADS, SQ).swapaxes(-1, -2),
}

ROOM = 64


def cached() -> dict[str, Any]:
    """A call that appends: of queries and as many new keys, into rows."""
    return {
        "q": Q,
        "k_cache": normal(BATCH, ROOM, KV, D),
        "v_cache": normal(BATCH, ROOM, KV, D, seed=1),
        "k": normal(BATCH, SQ, KV, D, seed=2),
        "v": normal(BATCH, SQ, KV, D, seed=3),
        "cache_seqlens": LENGTHS,
    }


ALONE = {"k": None, "v": None}  # nothing is appended
PAGES = {"k_cache": normal(4, ROOM, KV, D), "v_cache": normal(4, ROOM, KV, D)}
NARROW_CACHE = {
    "k_cache": normal(BATCH, ROOM, KV, D).astype(E4M3),
    "v_cache": normal(BATCH, ROOM, KV, D).astype(E4M3),
    "k_descale": ones(1),
    "v_descale": ones(1),
}
ALL_NARROW = {**narrowed({"q": Q}), **NARROW_CACHE, **ALONE, "q_descale": ones(1)}
ANGLES = {
    "rotary_cos": normal(80, 16, dtype=np.float32),
    "rotary_sin": normal(80, 16, dtype=np.float32),
}
FLAT_NEW = {"k": normal(5, KV, D), "v": normal(5, KV, D), "cu_seqlens_k_new": i32(0, 2, 5)}
FLAT_Q = {"q": normal(TOTAL_Q, HEADS, D), "cu_seqlens_q": CU_Q, "max_seqlen_q": 5, **ALONE}
HINTS = (
    "score_mod", "mask_mod", "aux_tensors", "only_qv", "cp_world_size", "cp_rank",
    "cp_tot_seqused_k",
)  # fmt: skip
WITH_KVCACHE = {
    **changed(cached(), "q", "k", "v"),
    "k_cache": Change(normal(BATCH, ROOM, KV, D, seed=9), every=True),
    "v_cache": Change(normal(BATCH, ROOM, KV, D, seed=9), every=True),
    **meant_otherwise("qv", *HINTS),
    **{name: SAYS_NOTHING[name] for name in ("deterministic", "fa_version", "ver", "pack_gqa")},
    "scheduler_metadata": SAYS_NOTHING["scheduler_metadata"],
    "rotary_cos": Change(ones(80, 16, value=2), ANGLES, every=True),
    "rotary_sin": Change(ones(80, 16, value=2), ANGLES, every=True),
    "rotary_interleaved": Change(False, {**ANGLES, "causal": True}, every=True),
    "rotary_seqlens": Change(i32(1, 2), {**ANGLES, "causal": True}, every=True),
    "cache_seqlens": Change(i32(21, 34), every=True),
    "cache_batch_idx": Change(i32(1, 0), every=True),
    "cache_leftpad": Change(i32(3, 4), every=True),
    "page_table": Change(TABLE[::-1].copy(), {**PAGES, "page_table": TABLE}, every=True),
    "block_table": Change(TABLE[::-1].copy(), {**PAGES, "block_table": TABLE}, every=True),
    "cu_seqlens_q": Change(i32(0, 1, TOTAL_Q), FLAT_Q),
    "cu_seqlens_k_new": Change(i32(0, 3, 5), FLAT_NEW, every=True),
    "max_seqlen_q": Change(6, FLAT_Q),
    "q_descale": Change(ones(1, value=2), ALL_NARROW),
    "k_descale": Change(ones(1, value=2), NARROW_CACHE, every=True),
    "v_descale": Change(ones(1, value=2), NARROW_CACHE, every=True),
    **SCORES,
    "attention_chunk": Change(16),
    "num_splits": Change(2),
    "sm_margin": Change(2),
    "return_softmax_lse": Change(True),
    "alibi_slopes": Change(ones(HEADS)),
    "learnable_sink": Change(ones(HEADS)),
    "s_aux": Change(ones(HEADS)),
    "sinks": Change(ones(HEADS)),
    "out": Change(np.zeros(DENSE_O, BF16)),
    **ON,
}
IN_PAGES = {
    "k": normal(4, ROOM, KV, D),
    "v": normal(4, ROOM, KV, D, seed=1),
    "cu_seqlens_k": None,
    "seqused_k": LENGTHS,
}
STATES = {
    "output": np.zeros(RAGGED_O, BF16),
    "prefix_output": normal(*RAGGED_O),
    "prefix_lse": normal(HEADS, TOTAL_Q, dtype=np.float32),
    "suffix_output": normal(*RAGGED_O, seed=1),
    "suffix_lse": normal(HEADS, TOTAL_Q, seed=1, dtype=np.float32),
}
NEW_TOKENS = {
    "key": normal(5, KV, D),
    "value": normal(5, KV, D, seed=1),
    "key_cache": normal(4, ROOM, KV, D),
    "value_cache": normal(4, ROOM, KV, D, seed=1),
    "slot_mapping": i32(3, -1, 70, 200, 5),
    "kv_cache_dtype": "auto",
    "k_scale": ones(1),
    "v_scale": ones(1),
}
BYTES = {
    "key_cache": np.zeros((4, ROOM, KV, D), np.uint8),
    "value_cache": np.zeros((4, ROOM, KV, D), np.uint8),
    "kv_cache_dtype": "fp8",
}
PASS_SCORES = {
    "softmax_scale": SCORES["softmax_scale"],
    "causal": SCORES["causal"],
    "window_size_left": Change(5),
    "window_size_right": Change(2),
}


def forward_pass(right: Mapping[str, Any], *without_effect: str) -> dict[str, Change]:
    """Changes of a forward pass."""
    modifiers = {"softcap": SCORES["softcap"], "alibi_slopes": BY_POSITION["alibi_slopes"]}
    refused = meant_otherwise("dropout_p", "return_softmax", *without_effect)
    return {**changed(right, "q", "k", "v"), **PASS_SCORES, **modifiers, **refused, **ON}


def backward_of(right: Mapping[str, Any], lse: tuple[int, ...]) -> dict[str, Any]:
    """Operands of a backward pass, with memory for its results."""
    rows = {name: right[name] for name in "qkv"}
    outputs = {name: normal(*right["q"].shape, seed=2) for name in ("dout", "out")}
    memory = {f"d{name}": np.zeros_like(x) for name, x in rows.items()}
    return {**right, **outputs, "softmax_lse": ones(*lse), **memory}


def backward_pass(right: Mapping[str, Any]) -> dict[str, Change]:
    """Changes of a backward pass."""
    memory = {name: Change(ones(1), refused=True) for name in ("dq", "dk", "dv")}
    operands = changed(right, "q", "k", "v", "dout", "out")
    lse = {"softmax_lse": Change(right["softmax_lse"] * 2)}
    modifiers = {"softcap": SCORES["softcap"], "alibi_slopes": BY_POSITION["alibi_slopes"]}
    refused = meant_otherwise("dropout_p", "rng_state")
    hopper = {"device": am.EmulatorDevice(target="sm_90a")}  # which has kernels of both forms
    form = {"deterministic": Change(True, hopper)}
    return {**operands, **lse, **memory, **PASS_SCORES, **modifiers, **refused, **form, **ON}


BACKWARD = backward_of(DENSE, (BATCH, HEADS, SQ))
RAGGED_BACKWARD = backward_of(RAGGED, (HEADS, TOTAL_Q))
FLASH = {
    "_flash_attn_forward": Subject(flash._flash_attn_forward, lambda: DENSE, forward_pass(DENSE)),
    "_flash_attn_varlen_forward": Subject(
        flash._flash_attn_varlen_forward,
        lambda: RAGGED,
        {
            **forward_pass(RAGGED, "block_table", "leftpad_k"),
            **OFFSETS,
            "seqused_k": Change(LENGTHS),
            "zero_tensors": Change(True, nothing=True),
        },
    ),
    "_flash_attn_backward": Subject(
        flash._flash_attn_backward, lambda: BACKWARD, backward_pass(BACKWARD)
    ),
    "_flash_attn_varlen_backward": Subject(
        flash._flash_attn_varlen_backward,
        lambda: RAGGED_BACKWARD,
        {
            **backward_pass(RAGGED_BACKWARD),
            **OFFSETS,
            "zero_tensors": Change(True, nothing=True),
        },
    ),
    "flash_attn_func": Subject(
        flash.flash_attn_func,
        lambda: DENSE,
        packed(DENSE, DENSE_O, **changed(DENSE, "q", "k", "v")),
    ),
    "flash_attn_varlen_func": Subject(
        flash.flash_attn_varlen_func,
        lambda: RAGGED,
        packed(
            RAGGED,
            RAGGED_O,
            **changed(RAGGED, "q", "k", "v"),
            **OFFSETS,
            block_table=Change(TABLE[::-1].copy(), {**IN_PAGES, "block_table": TABLE}),
            page_table=Change(TABLE[::-1].copy(), {**IN_PAGES, "page_table": TABLE}),
            seqused_q=Change(i32(1, 2)),
            seqused_k=Change(LENGTHS),
        ),
    ),
    "flash_attn_qkvpacked_func": Subject(
        flash.flash_attn_qkvpacked_func,
        lambda: QKV,
        packed(
            QKV,
            (BATCH, SK, HEADS, D),
            **changed(QKV, "qkv"),
            num_heads_q=Change(2, {"qkv": normal(BATCH, SK, 6, D), "num_heads_q": 4}),
        ),
    ),
    "flash_attn_kvpacked_func": Subject(
        flash.flash_attn_kvpacked_func,
        lambda: KV_PACKED,
        packed(KV_PACKED, DENSE_O, **changed(KV_PACKED, "q", "kv")),
    ),
    "flash_attn_varlen_qkvpacked_func": Subject(
        flash.flash_attn_varlen_qkvpacked_func,
        lambda: RAGGED_QKV,
        packed(
            RAGGED_QKV,
            (TOTAL_K, HEADS, D),
            **changed(RAGGED_QKV, "qkv"),
            cu_seqlens=Change(i32(0, 31, TOTAL_K)),
            max_seqlen=Change(121),
        ),
    ),
    "flash_attn_varlen_kvpacked_func": Subject(
        flash.flash_attn_varlen_kvpacked_func,
        lambda: RAGGED_KV,
        packed(RAGGED_KV, RAGGED_O, **changed(RAGGED_KV, "q", "kv"), **OFFSETS),
    ),
    "flash_attn_combine": Subject(
        flash.flash_attn_combine,
        lambda: COMBINE,
        {
            "out_partial": Change(ones(3, BATCH, SQ, HEADS, D, value=2)),
            "lse_partial": Change(ones(3, BATCH, HEADS, SQ, value=2).swapaxes(-1, -2)),
            "out": Change(np.zeros(DENSE_O, np.float32)),
            "out_dtype": Change("bf16"),
            "return_lse": Change(False),
            **meant_otherwise("cu_seqlens", "seqused", "virtual_batch_idx"),
            **ON,
        },
    ),
    "flash_attn_with_kvcache": Subject(flash.flash_attn_with_kvcache, cached, WITH_KVCACHE),
    "merge_attn_states": Subject(
        flash.merge_attn_states,
        lambda: STATES,
        {
            "output": Change(np.zeros(RAGGED_O, np.float32)),
            **changed(STATES, "prefix_output", "suffix_output"),
            **{
                n: Change(normal(HEADS, TOTAL_Q, seed=9, dtype=np.float32))
                for n in ("prefix_lse", "suffix_lse")
            },
            "output_lse": Change(np.zeros((HEADS, TOTAL_Q), np.float32)),
            "prefill_tokens_with_context": Change(2),
            **meant_otherwise("output_scale"),
            **ON,
        },
    ),
    "reshape_and_cache_flash": Subject(
        flash.reshape_and_cache_flash,
        lambda: NEW_TOKENS,
        {
            **changed(NEW_TOKENS, "key", "value", "key_cache", "value_cache"),
            "slot_mapping": Change(i32(4, -1, 70, 200, 5)),
            "kv_cache_dtype": Change("fp8_e5m2", BYTES),
            "k_scale": Change(ones(1, value=2), BYTES),
            "v_scale": Change(ones(1, value=2), BYTES),
            **ON,
        },
    ),
}

ROW, LATENT = 576, 512


def paged() -> dict[str, Any]:
    return {
        "q": normal(BATCH, 1, 16, ROW),
        "k_cache": normal(4, 64, 1, ROW),
        "block_table": TABLE,
        "cache_seqlens": LENGTHS,
        "head_dim_v": LATENT,
        "tile_scheduler_metadata": flash_mla.get_mla_metadata()[0],
    }


E4M3: Any = ml_dtypes.float8_e4m3fn


def narrow() -> dict[str, Any]:
    right = paged() | {"tile_scheduler_metadata": None, "num_splits": None}
    return right | {"k_cache": right["k_cache"].astype(E4M3)}


LISTS, EXTRA_LISTS = np.zeros((BATCH, 1, 5), np.int32), np.zeros((BATCH, 1, 3), np.int32)
LISTED = {"indices": LISTS}
EXTRA = {**LISTED, "extra_k_cache": normal(4, 16, 1, ROW), "extra_indices_in_kvcache": EXTRA_LISTS}
NARROW_ROWS = {**LISTED, "k_cache": np.zeros((4, 64, 1, 656), np.uint8), "is_fp8_kvcache": True}
USED_METADATA = flash_mla.FlashMLASchedMeta({"b": BATCH + 1})
PREFILL = {
    "q": normal(TOTAL_Q, HEADS, D),
    "k": normal(TOTAL_K, KV, D),
    "v": normal(TOTAL_K, KV, D, seed=1),
    "cu_seqlens_qo": CU_Q,
    "cu_seqlens_kv": CU_K,
    "max_seqlen_qo": 5,
    "max_seqlen_kv": 120,
}
PREFILL_SCORES = {
    **meant_otherwise("dropout_p"),
    "softmax_scale": Change(0.5),
    "causal": Change(True),
    "deterministic": Change(True, nothing=True),
    "is_varlen": Change(False, nothing=True),
    **ON,
}
PREFILL_OFFSETS = {
    "cu_seqlens_qo": Change(i32(0, 3, TOTAL_Q)),
    "cu_seqlens_kv": Change(i32(0, 31, TOTAL_K)),
    "max_seqlen_qo": Change(6),
    "max_seqlen_kv": Change(121),
}
MLA_QKV = {
    "qkv": normal(TOTAL_K, HEADS, 3 * D),
    "cu_seqlens": CU_K,
    "max_seqlen": 120,
    "head_dim_qk": D,
}
MLA_KV = {
    **{n: x for n, x in PREFILL.items() if n not in "kv"},
    "kv": normal(TOTAL_K, KV, 2 * D),
    "head_dim_qk": D,
}
SPARSE = {
    "q": normal(6, 64, ROW),
    "kv": normal(128, 1, ROW),
    "indices": np.zeros((6, 1, 5), np.int32),
    "sm_scale": 0.1,
}
FLASH_MLA = {
    "flash_mla_with_kvcache": Subject(
        flash_mla.flash_mla_with_kvcache,
        paged,
        {
            **changed(paged(), "q", "k_cache"),
            "block_table": Change(TABLE[::-1].copy()),
            "cache_seqlens": Change(LENGTHS + 1),
            "head_dim_v": Change(256, refused=True),
            "tile_scheduler_metadata": Change(USED_METADATA, refused=True),
            "num_splits": Change(2, refused=True),
            "softmax_scale": Change(0.5),
            "causal": Change(True),
            "is_fp8_kvcache": Change(False, NARROW_ROWS, refused=True),
            "indices": Change(LISTS + 1, LISTED),
            "attn_sink": Change(ones(16)),
            "extra_k_cache": Change(normal(4, 16, 1, ROW, seed=9), EXTRA),
            "extra_indices_in_kvcache": Change(EXTRA_LISTS + 1, EXTRA),
            "topk_length": Change(i32(2, 3), LISTED),
            "extra_topk_length": Change(i32(2, 3), EXTRA),
            **ON,
        },
    ),
    "flash_mla_with_kvcache_fp8": Subject(
        flash_mla.flash_mla_with_kvcache_fp8,
        narrow,
        {
            **changed(narrow(), "q"),
            "k_cache": Change(ones(4, 64, 1, ROW).astype(E4M3)),
            "block_table": Change(TABLE[::-1].copy()),
            "cache_seqlens": Change(LENGTHS + 1),
            "head_dim_v": Change(256, refused=True),
            "tile_scheduler_metadata": Change(USED_METADATA, nothing=True),
            "num_splits": Change(2, nothing=True),
            "softmax_scale": Change(0.5),
            "causal": Change(True),
            "descale_q": Change(ones(1) / 2),
            "descale_k": Change(ones(1) / 2),
            **ON,
        },
    ),
    "flash_attn_varlen_func": Subject(
        flash_mla.flash_attn_varlen_func,
        lambda: PREFILL,
        {**changed(PREFILL, "q", "k", "v"), **PREFILL_OFFSETS, **PREFILL_SCORES},
    ),
    "flash_attn_varlen_qkvpacked_func": Subject(
        flash_mla.flash_attn_varlen_qkvpacked_func,
        lambda: MLA_QKV,
        {
            **changed(MLA_QKV, "qkv"),
            "cu_seqlens": Change(i32(0, 31, TOTAL_K)),
            "max_seqlen": Change(121),
            "head_dim_qk": Change(72),
            **PREFILL_SCORES,
        },
    ),
    "flash_attn_varlen_kvpacked_func": Subject(
        flash_mla.flash_attn_varlen_kvpacked_func,
        lambda: MLA_KV,
        {
            **changed(MLA_KV, "q", "kv"),
            "head_dim_qk": Change(72, refused=True),
            **PREFILL_OFFSETS,
            **PREFILL_SCORES,
        },
    ),
    "flash_mla_sparse_fwd": Subject(
        flash_mla.flash_mla_sparse_fwd,
        lambda: SPARSE,
        {
            **changed(SPARSE, "q", "kv"),
            "indices": Change(np.ones((6, 1, 5), np.int32)),
            "sm_scale": Change(0.5),
            "d_v": Change(256, refused=True),
            "attn_sink": Change(ones(64)),
            "topk_length": Change(i32(*range(6))),
            "indexer_topk": Change(2, refused=True),
            **ON,
        },
    ),
}
NO_CALL = {  # carry out no plan; see test_flash_mla and test_flash_serving
    "flash": {"get_scheduler_metadata"},
    "flash_mla": {"get_mla_metadata", "get_mla_metadata_dense_fp8", "FlashMLASchedMeta"},
}
SUBJECTS = {"flash": FLASH, "flash_mla": FLASH_MLA}
PLACES: dict[str, Any] = {"flash": flash, "flash_mla": flash_mla}
CALLED_OTHERWISE = {  # refused by the name that the argument has further down
    "softmax_scale", "learnable_sink", "cu_seqlens", "max_seqlen", "block_table", "alibi_slopes",
}  # fmt: skip
NOT_LOOKED_AT = {
    "stream",  # the launch alone looks at it
    "flash_mla.flash_mla_with_kvcache_fp8.tile_scheduler_metadata",
    "flash_mla.flash_mla_with_kvcache_fp8.num_splits",
}
test_an_argument_does_something, test_what_is_nothing_is_refused_by_its_name = effect_tests(
    SUBJECTS, otherwise=CALLED_OTHERWISE, taken=NOT_LOOKED_AT
)


@pytest.mark.parametrize("place", SUBJECTS)
def test_every_argument_has_a_row(place: str) -> None:
    functions = SUBJECTS[place]
    assert set(functions) | NO_CALL[place] == set(PLACES[place].__all__)
    for name, subject in functions.items():
        assert sorted(parameters(subject.function)) == sorted(subject.changes), name
