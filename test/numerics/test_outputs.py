"""Dtypes of O other than the operands', and kernels without LSE."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import attn_mlir as am
from attn_mlir.reference import check_attention
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics.mha_check import poisoned

HEADS = 2  # of queries, which share keys and values
NUMPY: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}


def operands(head_dim: int, v_head_dim: int, dtype: str) -> list[NDArray[Any]]:
    random = np.random.default_rng(5)
    shapes = ((1, 150, HEADS, head_dim), (1, 200, 1, head_dim), (1, 200, 1, v_head_dim))
    return [random.standard_normal(shape, np.float32).astype(NUMPY[dtype]) for shape in shapes]


@pytest.mark.parametrize("schedule", ["fair", "adversarial"])
@pytest.mark.parametrize(
    ("head_dim", "v_head_dim", "dtype", "out_dtype"),
    [
        (128, 128, "bf16", "f32"),  # O takes more shared memory than Q, whose place it takes
        (64, 40, "f16", "f32"),  # the last line of O is part of a box
        (64, 64, "bf16", "f16"),
        (64, 64, "f16", "bf16"),
        (256, 128, "bf16", "f32"),  # one query tile
    ],
)
@pytest.mark.long("64-64-f16-bf16-fair", "64-*-adversarial", "128-*-adversarial", "256-*-fair")
def test_out_dtype(
    head_dim: int, v_head_dim: int, dtype: str, out_dtype: str, schedule: Any
) -> None:
    q, k, v = operands(head_dim, v_head_dim, dtype)
    o = poisoned((*q.shape[:3], v_head_dim), np.dtype(NUMPY[out_dtype]))
    lse = poisoned((1, HEADS, 150), np.dtype(np.float32))
    spec = am.mha(
        heads=HEADS, kv_heads=1, head_dim=head_dim, v_head_dim=v_head_dim, dtype=dtype,
        out_dtype=out_dtype, mask=am.causal(),
    )  # fmt: skip
    am.load(am.compile(spec))(q, k, v, o, lse, device=EmulatorDevice(schedule=schedule))
    verdict = check_attention(q, k, v, o, lse, mask=am.causal())
    assert verdict.ok, str(verdict)


def test_f32_output_is_not_rounded() -> None:
    q, k, v = operands(64, 64, "bf16")
    exact = am.attention(q, k, v, out_dtype=np.float32, device="emulator")
    narrow = am.attention(q, k, v, device="emulator")
    assert exact.dtype == np.float32
    assert np.array_equal(exact.astype(ml_dtypes.bfloat16), narrow)
    assert not np.array_equal(exact, narrow.astype(np.float32))


def test_without_lse() -> None:
    """The kernel has no such argument, and O is the same, bit for bit."""
    q, k, v = operands(64, 64, "bf16")
    spec = am.mha(heads=HEADS, kv_heads=1, head_dim=64, return_lse=False)
    run = am.load(am.compile(spec))
    assert [tensor.name for tensor in run.bundle.manifest.tensors] == ["q", "k", "v", "o"]
    o = poisoned(q.shape, q.dtype)
    run(q, k, v, o, device=EmulatorDevice())
    with_lse, _ = am.attention(q, k, v, return_lse=True, device="emulator")
    assert np.array_equal(o, with_lse)
