"""FlashAttention's names: what they ask of `attention`, and one call of each that runs."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.adapters import arguments_of
from attn_mlir.errors import SpecError
from attn_mlir.flash import (
    flash_attn_combine,
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
    functions,
)
from attn_mlir.flash.options import OPTIONS
from attn_mlir.flash.table import NEUTRAL

RANDOM = np.random.default_rng(3)


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(ml_dtypes.bfloat16)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options of the last call of `attention`, which computes nothing."""
    options: dict[str, Any] = {}
    monkeypatch.setattr(functions, "attention", lambda *_, **given: options.update(given))
    return options


@pytest.mark.parametrize(
    ("given", "mask"),
    [
        ({}, am.full()),
        ({"window_size": (None, None)}, am.full()),
        ({"window_size": None}, am.full()),
        ({"window_size": [30, 0]}, am.sliding_window(30, 0)),
        ({"attention_chunk": None}, am.full()),
        ({"causal": True}, am.causal()),
        ({"causal": True, "window_size": (-1, 7)}, am.causal()),
        ({"causal": True, "window_size": (30, -1)}, am.sliding_window(30, 0)),
        ({"window_size": (30, -1)}, am.sliding_window(30, None)),
        ({"window_size": (-1, 0)}, am.causal()),
        ({"window_size": (0, 0)}, am.sliding_window(0, 0)),
    ],
)
def test_masks(given: dict[str, Any], mask: am.Mask, asked: dict[str, Any]) -> None:
    flash_attn_func(1, 2, 3, **given)
    assert asked["mask"] == mask and asked["score_mod"] is None


def test_limits_of_a_window_are_named_as_they_were_given() -> None:
    for side in range(2):
        window = [5, 5]
        window[side] = 2**40
        with pytest.raises(SpecError, match=rf"^window_size\[{side}\] must be an integer from -1"):
            flash_attn_func(1, 2, 3, window_size=window)


def test_positions_are_those_of_flash_attention() -> None:
    names = list(inspect.signature(flash_attn_varlen_func).parameters)
    assert names[:11] == [
        *("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
        *("dropout_p", "softmax_scale", "causal", "window_size"),
    ]
    last = ["softcap", "alibi_slopes", "deterministic", "return_attn_probs"]
    assert names[11:16] == [*last, "block_table"]
    dense = list(inspect.signature(flash_attn_func).parameters)
    assert dense[:11] == names[:3] + names[7:11] + last
    for function, packed in (
        (flash_attn_qkvpacked_func, ["qkv"]),
        (flash_attn_kvpacked_func, ["q", "kv"]),
        (flash_attn_varlen_qkvpacked_func, ["qkv", "cu_seqlens", "max_seqlen"]),
        (flash_attn_varlen_kvpacked_func, ["q", "kv", *names[3:7]]),
    ):
        positions = list(inspect.signature(function).parameters)
        assert positions[: len(packed) + 8] == packed + dense[3:11]
    combine = list(inspect.signature(flash_attn_combine).parameters)
    assert combine[:4] == ["out_partial", "lse_partial", "out", "out_dtype"]


FLASH_2 = {"alibi_slopes": None, "deterministic": False, "return_attn_probs": False, "dropout_p": 0}
FLASH_3: dict[str, Any] = {
    **dict.fromkeys(("qv", "q_descale", "k_descale", "v_descale", "pack_gqa", "page_table")),
    **dict.fromkeys(("scheduler_metadata", "rotary_cos", "rotary_sin", "rotary_seqlens")),
    **dict.fromkeys(("cache_batch_idx", "cache_leftpad")),
    "attention_chunk": 0,
    "sm_margin": 0,
    "num_splits": 1,
    "rotary_interleaved": True,
}
FLASH_4 = {
    **dict.fromkeys(("score_mod", "mask_mod", "block_sparse_tensors", "aux_tensors", "block_size")),
    **dict.fromkeys(("full_block_cnt", "full_block_idx", "mask_block_cnt", "mask_block_idx")),
    **dict.fromkeys(("cu_total_m_blocks", "cu_total_n_blocks", "learnable_sink", "page_table")),
    **dict.fromkeys(("score_mod_bwd", "block_sparse_tensors_bwd", "aux_scalars", "min_seqlen_k")),
    **dict.fromkeys(("gather_kv_indices", "seqlen_k_per_split")),
    "disable_scheduler_metadata": False,
    "return_lse": False,
    "window_size": (None, None),
    "num_splits": 1,
}


@pytest.mark.parametrize("options", [FLASH_2, FLASH_3, FLASH_4])
def test_defaults_of_flash_attention_mean_nothing(
    options: dict[str, Any], asked: dict[str, Any]
) -> None:
    flash_attn_func(1, 2, 3, **options)
    flash_attn_varlen_func(1, 2, 3, **options)
    assert asked["mask"] == am.full() and asked.get("scale") is None


def test_chunks(asked: dict[str, Any]) -> None:
    flash_attn_func(1, 2, 3, causal=True, attention_chunk=16)
    assert asked["mask"] == am.causal() & am.chunked(16)


@pytest.mark.parametrize("name", NEUTRAL)
@pytest.mark.parametrize("value", [np.ones(2, np.float32), 9, "on", np.array(7)])
def test_what_asks_for_something_is_refused_by_name(name: str, value: Any) -> None:
    function: Any = flash_attn_func
    if name in OPTIONS.defaults:  # used there, and a hint of the function for a cache
        function = flash_attn_with_kvcache
    elif name not in arguments_of(function):
        function = flash_attn_combine
    with pytest.raises(SpecError, match=f"^{name} must be .*, got .*: "):
        function(
            *[normal(1, 3, 2, 64)] * (2 if function is flash_attn_combine else 3), **{name: value}
        )


@pytest.mark.parametrize("value", [np.ones(2, np.float32), 9, "on", np.array(7)])
def test_deterministic_is_a_flag(value: Any) -> None:
    with pytest.raises(SpecError, match="^deterministic must be True or False, got "):
        flash_attn_func(*[normal(1, 3, 2, 64)] * 3, deterministic=value)


def test_options_that_there_are_not() -> None:
    with pytest.raises(SpecError, match="^flash_attn_func has no argument softmax"):
        flash_attn_func(1, 2, 3, softmax=1.0)


SINKS = np.array([3.0, -np.inf], np.float32)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", ["learnable_sink", "s_aux"])
def test_lse_counts_sinks(name: str, ragged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As FlashAttention's does; of a query without keys it is the sink."""
    lse = np.array([[1.0, -np.inf, 7.5], [2.0, -np.inf, 0.5]], np.float32)
    asked: dict[str, Any] = {}

    def attention(q: Any, *_: Any, **given: Any) -> Any:
        asked.update(given)
        return (q, lse if ragged else lse[None]) if given["return_lse"] else q

    monkeypatch.setattr(functions, "attention", attention)
    operands, sinks = [normal(3, 2, 64)] * 3, SINKS.astype(ml_dtypes.bfloat16)
    _, found = flash_attn_varlen_func(*operands, **{name: sinks}, return_lse=True)
    with np.errstate(divide="ignore"):
        want = np.log(np.exp(lse.astype(np.float64)) + np.exp(SINKS.astype(np.float64))[:, None])
    assert asked["sinks"] is sinks and found.dtype == np.float32
    assert np.allclose(found if ragged else found[0], want, rtol=0, atol=1e-6)
    assert flash_attn_varlen_func(*operands, **{name: sinks}) is operands[0]


@pytest.mark.slow
def test_lse_of_parts_counts_sinks_once() -> None:
    """Of keys in two parts, too."""
    q, k, v = normal(1, 4, 2, 64), normal(1, 260, 2, 64), normal(1, 260, 2, 64)
    sinks = np.array([4.0, 5.0], np.float32)
    options: dict[str, Any] = {"return_lse": True, "device": "emulator"}
    o, lse = flash_attn_func(q, k, v, learnable_sink=sinks, num_splits=2, **options)
    truth = am.reference.attention_f64(q, k, v, sinks=sinks)
    assert np.allclose(lse, np.logaddexp(truth.lse, sinks[:, None]), rtol=0, atol=1e-3)
    assert np.allclose(o.astype(np.float64), truth.o, rtol=0, atol=0.02)


def test_sinks_are_named_as_they_were_passed() -> None:
    operands = [normal(1, 3, 2, 64)] * 3
    with pytest.raises(SpecError, match="^learnable_sink and s_aux are two names of one argument"):
        flash_attn_func(*operands, learnable_sink=SINKS, s_aux=SINKS)
    with pytest.raises(SpecError, match=r"^s_aux must be \[2\] of f32, bf16 or f16, got \[1\]"):
        flash_attn_func(*operands, s_aux=SINKS[:1])
    with pytest.raises(SpecError, match=r"^learnable_sink must be \[2\] of f32"):
        flash_attn_func(*operands, learnable_sink=SINKS[:1])
    with pytest.raises(SpecError, match="^s_aux must be an array of numpy, torch or cupy"):
        flash_attn_func(*operands, s_aux=[1.0, 2.0], return_lse=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("window", "wrong"), [((-1, -3), "right"), ((-5, 4), "left"), ((3, 1.5), "right")]
)
def test_windows_are_refused_alike(window: Any, wrong: str, causal: bool) -> None:
    with pytest.raises(SpecError, match=f"^{wrong} of a sliding window must be"):
        flash_attn_func(1, 2, 3, causal=causal, window_size=window)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout_p": 0.1}, "^dropout_p must be 0, got 0.1"),
        ({"window_size": 5}, r"^window_size must be \(left, right\), got 5"),
        ({"window_size": (1, 2, 3)}, r"^window_size must be \(left, right\)"),
        ({"window_size": (-2, 0)}, "^left of a sliding window must be"),
        ({"window_size": ("a", 0)}, "^left of a sliding window must be"),
        ({"window_size": (True, 0)}, "^left of a sliding window must be"),
        ({"causal": "yes"}, "^causal must be True or False, got 'yes'"),
        ({"attention_chunk": 1.5}, "^attention_chunk must be an integer from 0"),
        ({"softcap": "3"}, "^softcap must be a number, got '3'"),
        ({"softcap": float("nan")}, "^cap of a softcap must be"),
        ({"dropout_p": float("nan")}, "^dropout_p must be 0, got nan: there is no dropout"),
        ({"softmax_scale": "1"}, "^softmax_scale must be a number, got '1'"),
        ({"softcap": -3.0}, "^cap of a softcap must be"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        flash_attn_func(normal(1, 3, 2, 64), normal(1, 4, 2, 64), normal(1, 4, 2, 64), **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: flash_attn_qkvpacked_func(normal(2, 9, 2, 2, 64)),
            r"^qkv must be \[batch, sequence, 3,",
        ),
        (lambda: flash_attn_qkvpacked_func(normal(2, 9, 6, 64)), "^qkv must be"),
        (
            lambda: flash_attn_qkvpacked_func(normal(2, 9, 6, 64), num_heads_q=3),
            "^num_heads_q must",
        ),
        (
            lambda: flash_attn_qkvpacked_func(normal(2, 9, 6, 64), num_heads_q=6),
            "^num_heads_q must",
        ),
        (lambda: flash_attn_kvpacked_func(1, normal(2, 9, 3, 2, 64)), "^kv must be .*, 2, heads"),
        (lambda: flash_attn_kvpacked_func(1, None), "^kv must be a numpy array"),
        (
            lambda: flash_attn_varlen_qkvpacked_func(normal(1, 9, 3, 2, 64), None),
            r"^qkv must be \[total, 3, heads, head_dim\], got",
        ),
        (
            lambda: flash_attn_combine(normal(2, 1, 9, 2, 64), normal(2, 1, 9, 2)),
            "^out_partial must be",
        ),
        (
            lambda: flash_attn_combine(f32(2, 9, 2, 64), f32(2, 2, 9)),
            "^lse_partial must be .* of f32 as out_partial",
        ),
        (lambda: flash_attn_combine(f32(2, 9, 2, 64), f32(2, 9, 2)), "^lse_partial has strides"),
        (lambda: flash_attn_combine(f32(0, 9, 2, 64), f32(0, 9, 2)), "^out_partial has 0 parts"),
        (
            lambda: flash_attn_combine(f32(2, 9, 1, 60), f32(2, 9, 1)),
            "^v_head_dim 60 has no kernel",
        ),
        (
            lambda: flash_attn_combine(f32(2, 9, 1, 64), f32(2, 9, 1), return_lse="no"),  # pyright: ignore
            "^return_lse must be True or False",
        ),
        (
            lambda: flash_attn_combine(f32(2, 9, 1, 64), f32(2, 9, 1), out=f32(9, 2, 64)),
            "^out must have shape",
        ),
    ],
)
def test_packed_arrays_and_parts_are_refused(call: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()


def f32(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


@pytest.mark.slow
def test_packed_arrays() -> None:
    """One kernel for all of them; views of the packed array, an output of the caller's."""
    qkv = normal(2, 40, 3, 2, 64)
    q, k, v = np.moveaxis(qkv, 2, 0)
    out = np.full((2, 40, 2, 64), np.nan, q.dtype)
    options: dict[str, Any] = {"causal": True, "device": "emulator"}
    assert flash_attn_qkvpacked_func(qkv, **options, out=out) is out
    verdict = am.reference.check_attention(q, k, v, out, None, mask=am.causal())
    assert verdict.ok, str(verdict)
    for same in (
        flash_attn_kvpacked_func(q, qkv[:, :, 1:], **options),
        flash_attn_qkvpacked_func(qkv.reshape(2, 40, 6, 64), num_heads_q=2, **options),
    ):
        assert (same == out).all()
    ends = np.array([0, 40, 80], np.int32)
    rows = qkv.reshape(80, 3, 2, 64)
    packed = flash_attn_varlen_qkvpacked_func(rows, ends, 40, **options)
    parted = flash_attn_varlen_kvpacked_func(rows[:, 0], rows[:, 1:], ends, ends, 40, 40, **options)
    for same in (packed, parted):
        verdict = am.reference.check_attention(
            q, k, v, same.reshape(out.shape), None, mask=am.causal()
        )
        assert verdict.ok, str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [(2,), ()])
def test_combine(batch: tuple[int, ...]) -> None:
    parts = RANDOM.standard_normal((3, *batch, 20, 2, 64)).astype(np.float32)
    sums = RANDOM.standard_normal((3, *batch, 2, 20)).astype(np.float32).swapaxes(-1, -2)
    o, lse = flash_attn_combine(parts, sums, device="emulator")
    weights = np.exp(sums.astype(np.float64))
    total = weights.sum(axis=0)
    assert np.allclose(lse, np.log(total), atol=1e-5) and lse.shape == (*batch, 20, 2)
    truth = (weights[..., None] * parts).sum(axis=0) / total[..., None]
    assert np.allclose(o, truth, atol=1e-5) and o.dtype == np.float32
    out = np.full((*batch, 20, 4, 64), 7.0, np.float32)
    same, none = flash_attn_combine(
        parts, sums, out[..., 1:3, :], return_lse=False, device="emulator"
    )
    assert none is None and same.base is out and (same == o).all()
    assert (out[..., [0, 3], :] == 7.0).all()


@pytest.mark.slow
def test_a_ragged_batch() -> None:
    q, k, v = normal(20, 4, 64), normal(30, 2, 64), normal(30, 2, 64)
    ends_q, ends_k = np.array([0, 5, 20], np.int32), np.array([0, 10, 30], np.int32)
    options: dict[str, Any] = {"softcap": 3.0, "learnable_sink": np.ones(4, np.float32)}
    o, lse = flash_attn_varlen_func(
        q, k, v, ends_q, ends_k, 15, 20, 0.0, 0.3, True, return_lse=True, device="emulator",
        **options,
    )  # fmt: skip
    assert o.shape == q.shape and lse.shape == (4, 20)
    sinks = options["learnable_sink"]
    for b, (begin, end) in enumerate(itertools.pairwise(ends_q)):
        rows, keys = np.s_[begin:end], np.s_[ends_k[b] : ends_k[b + 1]]
        given: list[Any] = [q[None, rows], k[None, keys], v[None, keys]]
        scores: dict[str, Any] = {
            "mask": am.causal(),
            "score_mod": am.mods.softcap(3.0),
            "scale": 0.3,
        }
        verdict = am.reference.check_attention(*given, o[None, rows], None, sinks=sinks, **scores)
        assert verdict.ok, str(verdict)
        truth = am.reference.attention_f64(*given, **scores).lse[0]
        assert np.allclose(lse[:, rows], np.logaddexp(truth, sinks[:, None]), rtol=0, atol=1e-3)


def test_keys_by_index_are_refused_for_what_they_are() -> None:
    operand = np.zeros((1, 1, 1, 64), np.float16)
    with pytest.raises(SpecError, match="keys by index are not offered"):
        flash_attn_func(operand, operand, operand, gather_kv_indices=np.zeros(1, np.int32))
