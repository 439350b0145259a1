"""FlashAttention's names: what they ask of `attention`, and one call of each that runs."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import flash
from attn_mlir.errors import SpecError
from attn_mlir.flash import flash_attn_func, flash_attn_varlen_func

RANDOM = np.random.default_rng(3)


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(ml_dtypes.bfloat16)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options of the last call of `attention`, which computes nothing."""
    options: dict[str, Any] = {}
    monkeypatch.setattr(flash, "attention", lambda *_, **given: options.update(given))
    return options


@pytest.mark.parametrize(
    ("given", "mask"),
    [
        ({}, am.full()),
        ({"window_size": (None, None)}, am.full()),
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


def test_positions_are_those_of_flash_attention() -> None:
    names = list(inspect.signature(flash_attn_varlen_func).parameters)
    assert names[:11] == [
        *("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
        *("dropout_p", "softmax_scale", "causal", "window_size"),
    ]
    dense = list(inspect.signature(flash_attn_func).parameters)
    assert dense[:7] == names[:3] + names[7:11]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout_p": 0.1}, "^dropout_p must be 0, got 0.1"),
        ({"window_size": 5}, r"^window_size must be \(left, right\), got 5"),
        ({"window_size": (1, 2, 3)}, r"^window_size must be \(left, right\)"),
        ({"window_size": (-2, 0)}, "^left of a sliding window must be"),
        ({"softcap": -3.0}, "^cap of a softcap must be finite and greater than 0"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        flash_attn_func(normal(1, 3, 2, 64), normal(1, 4, 2, 64), normal(1, 4, 2, 64), **options)


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
    for b, (begin, end) in enumerate(itertools.pairwise(ends_q)):
        rows, keys = np.s_[begin:end], np.s_[ends_k[b] : ends_k[b + 1]]
        verdict = am.reference.check_attention(
            q[None, rows], k[None, keys], v[None, keys], o[None, rows], lse[None, :, rows],
            mask=am.causal(), score_mod=am.mods.softcap(3.0), sinks=np.ones(4, np.float32), scale=0.3,
        )  # fmt: skip
        assert verdict.ok, str(verdict)
