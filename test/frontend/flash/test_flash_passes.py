"""Forward and backward passes of FlashAttention by themselves: a ring of devices, one after the other."""

from __future__ import annotations

import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import flash
from attn_mlir.errors import SpecError
from attn_mlir.reference import attention_backward_f64, attention_f64

BF16: Any = ml_dtypes.bfloat16
ON = {"device": am.EmulatorDevice(target="sm_90a")}
HEADS, KV_HEADS, DIM = 4, 2, 32
NAMES = ("dq", "dk", "dv")


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(BF16)


def defaults(function: Any) -> dict[str, Any]:
    """As ring attention asks for them."""
    parameters = inspect.signature(function).parameters.values()
    return {x.name: x.default for x in parameters if x.default is not inspect.Parameter.empty}


def wide(*arrays: Any) -> list[Any]:
    return [np.asarray(x, np.float64) for x in arrays]


def gradients(q: Any, k: Any, v: Any, do: Any, mask: Any) -> Any:
    """In float64."""
    operands = wide(q, k, v)
    truth = attention_f64(*operands, mask=mask)
    return attention_backward_f64(*operands, truth.o, truth.lse, *wide(do), mask=mask)


def near(found: Any, truth: Any) -> None:
    np.testing.assert_allclose(*wide(found, truth), atol=0.015 * np.abs(truth).max())


def test_a_ring_of_two_gives_what_one_device_does() -> None:
    """Each of two devices has half of the sequence; the second one's queries see both halves."""
    q, do = normal(1, 48, HEADS, DIM), normal(1, 48, HEADS, DIM, seed=1)
    k, v = normal(1, 48, KV_HEADS, DIM, seed=2), normal(1, 48, KV_HEADS, DIM, seed=3)
    found = {name: np.zeros(x.shape) for name, x in zip(NAMES, (q, k, v), strict=True)}
    shards = slice(0, 24), slice(24, 48)
    for rank, rows in enumerate(shards):
        steps = [(shard, shard is rows) for shard in shards[: rank + 1]]
        parts: list[tuple[Any, ...]] = []
        for shard, causal in steps:
            given = {"q": q[:, rows], "k": k[:, shard], "v": v[:, shard], "causal": causal}
            options = defaults(flash._flash_attn_forward) | {"softmax_scale": DIM**-0.5}
            parts.append(flash._flash_attn_forward(**{**options, **given, **ON}))
        assert all(part[2:] == (None, None) for part in parts)
        lse = np.logaddexp.reduce([part[1] for part in parts])
        weights = [np.exp(part[1] - lse).swapaxes(1, 2)[..., None] for part in parts]
        o = sum(w * part[0].astype(np.float32) for w, part in zip(weights, parts, strict=True))
        for shard, causal in steps:
            memory = [np.empty(x.shape, BF16) for x in (q[:, rows], k[:, shard], v[:, shard])]
            options = defaults(flash._flash_attn_backward) | {"causal": causal, **ON}
            operands = do[:, rows], q[:, rows], k[:, shard], v[:, shard], o.astype(BF16), lse
            assert flash._flash_attn_backward(*operands, *memory, **options) is None
            for name, where, array in zip(NAMES, (rows, shard, shard), memory, strict=True):
                found[name][:, where] += array.astype(np.float64)
    truth = gradients(q, k, v, do, am.causal())
    for name in NAMES:
        near(found[name], getattr(truth, name))


def test_sequences_one_behind_the_other() -> None:
    """With a window, into memory with strides, where dk is not wanted."""
    ends = np.array([0, 7, 7, 40], np.int32)
    q, k, v, do = (normal(40, 2, DIM, seed=x) for x in range(4))
    options: dict[str, Any] = {"causal": True, "window_size_left": 5, **ON}
    lengths = ends, ends, 33, 33
    o, lse, *_ = flash._flash_attn_varlen_forward(q, k, v, *lengths, **options)
    packed = np.zeros((40, 3, 2, DIM), BF16)
    memory = packed[:, 0], None, packed[:, 2]
    flash._flash_attn_varlen_backward(do, q, k, v, o, lse, *memory, *lengths, **options)
    mask = am.sliding_window(5, 0)
    for begin, end in ((0, 7), (7, 40)):
        one = [x[None, begin:end] for x in (q, k, v, do)]
        truth = gradients(*one, mask)
        near(o[None, begin:end], attention_f64(*wide(*one[:3]), mask=mask).o)
        near(packed[None, begin:end, 0], truth.dq)
        near(packed[None, begin:end, 2], truth.dv)
    assert not packed[:, 1].any()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dropout_p": 0.1}, "dropout_p must be 0"),
        ({"rng_state": np.zeros(2)}, "rng_state must be None"),
        ({"dq": normal(1, 8, 2, 16)}, r"dq must have shape|dq has shape"),
        ({"softmax_lse": np.zeros((1, 8, 2), np.float32)}, "softmax_lse must be"),
        ({"dout": normal(1, 4, 2, 32)}, "dout must be"),
        ({"softmax_scale": -1.0}, "softmax_scale must be"),
        ({"window_size_left": -3}, "^window_size_left must be"),
    ],
)
def test_refused_by_their_names(changed: dict[str, Any], message: str) -> None:
    names = ("dout", "q", "k", "v", "out", "dq", "dk", "dv")
    given: dict[str, Any] = {name: normal(1, 8, 2, 32) for name in names}
    given["softmax_lse"] = np.zeros((1, 2, 8), np.float32)
    with pytest.raises(SpecError, match=message):
        flash._flash_attn_backward(**{**given, **ON, **changed})
