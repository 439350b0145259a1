"""FlashMLA's dense prefill on top of `attention`: its arguments, packed operands, what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir import flash_mla
from attn_mlir.errors import SpecError

BF16: Any = ml_dtypes.bfloat16
QK, V, HEADS = 192, 128, 2
ENDS = np.array([0, 3, 3, 40], np.int32)
LONGEST = 37


def made() -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    packed = random.standard_normal((40, HEADS, 2 * QK + V)).astype(BF16)
    return packed[..., :QK], packed[..., QK : 2 * QK], packed[..., 2 * QK :]


def truth(scale: float, *, is_causal: bool) -> tuple[Any, Any]:
    """O [total, heads, V] and LSE [total, heads] in float64."""
    o, lse = np.zeros((40, HEADS, V)), np.zeros((40, HEADS))
    for begin, end in pairwise(ENDS):
        q, k, v = (x[begin:end].astype(np.float64) for x in made())
        scores = scale * np.einsum("qhd,khd->hqk", q, k)
        if is_causal:
            scores[:, ~np.tri(end - begin, dtype=bool)] = -np.inf
        sums = np.log(np.exp(scores).sum(2))
        o[begin:end] = np.einsum("hqk,khd->qhd", np.exp(scores - sums[..., None]), v)
        lse[begin:end] = sums.T
    return o, lse


PLAIN = (*made(), ENDS, ENDS, LONGEST, LONGEST)
PACKED = np.concatenate(made(), 2)
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "q, k and v": (flash_mla.flash_attn_varlen_func, PLAIN),
    "qkv": (flash_mla.flash_attn_varlen_qkvpacked_func, (PACKED, ENDS, LONGEST, QK)),
    "kv": (
        flash_mla.flash_attn_varlen_kvpacked_func,
        (PACKED[..., :QK], PACKED[..., QK:], *PLAIN[3:], QK),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_is_the_formula(name: str) -> None:
    """Sequences of 3, 0 and 37 positions; the scale is that of head_dim_qk, unless it is given."""
    function, arguments = CALLS[name]
    is_causal = name == "qkv"
    options: dict[str, Any] = {"softmax_scale": 0.05, "causal": True} if is_causal else {}
    out, lse = function(*arguments, device="emulator", deterministic=True, **options)
    wanted, sums = truth(options.get("softmax_scale", QK**-0.5), is_causal=is_causal)
    assert out.dtype == BF16 and np.abs(out.astype(np.float64) - wanted).max() < 0.03
    assert lse.shape == (40, HEADS) and lse.strides[0] == lse.itemsize
    assert np.abs(lse - sums).max() < 1e-3


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("q, k and v", {"dropout_p": 0.1}, "dropout_p must be 0, got 0.1: there is no dropout"),
        ("q, k and v", {"is_varlen": 1}, "is_varlen must be True or False, got 1"),
        ("q, k and v", {"causal": None}, "causal must be True or False, got None"),
        ("q, k and v", {"deterministic": 2}, "deterministic must be False or True, got 2"),
        ("q, k and v", {"max_seqlen_kv": 36}, "^max_seqlen_kv is 36, but"),
        ("q, k and v", {"cu_seqlens_qo": ENDS[::-1].copy()}, "^cu_seqlens_qo must not decrease"),
        ("q, k and v", {"softmax_scale": -1.0}, "^softmax_scale must be finite"),
        ("qkv", {"head_dim_qk": 256}, "head_dim_qk must be an integer from 1 to 255, got 256"),
        ("kv", {"head_dim_qk": 320}, "head_dim_qk must be an integer from 1 to 319, got 320"),
        (
            "kv",
            {"kv": PACKED[0]},
            r"kv must be \[total, heads, head_dim_qk \+ head_dim_v\], got \[",
        ),
    ],
)
def test_refused(name: str, changed: dict[str, Any], message: str) -> None:
    function, arguments = CALLS[name]
    given = dict(zip(inspect.signature(function).parameters, arguments, strict=False)) | changed
    with pytest.raises(SpecError, match=message):
        function(**given, device="emulator")


def test_large_heads_have_no_gradients() -> None:
    torch: Any = pytest.importorskip("torch")
    q, k, v = (torch.zeros(3, 2, 256, dtype=torch.bfloat16) for _ in range(3))
    ends = torch.tensor([0, 3], dtype=torch.int32)
    with pytest.raises(
        SpecError, match="^k requires a gradient, which this call has none of: .*256"
    ):
        flash_mla.flash_attn_varlen_func(
            q, k.requires_grad_(), v, ends, ends, 3, 3, device="emulator"
        )
