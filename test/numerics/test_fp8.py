"""8-bit Q, K and V on the emulator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mha_check import poisoned
from numpy.typing import NDArray

import attn_mlir as am
from attn_mlir.reference import check_attention
from attn_mlir.runtime.devices.emulator import EmulatorDevice

NUMPY: dict[str, Any] = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
BATCH, HEADS, KV_HEADS = 2, 4, 2


def operands(
    dtype: str, sq: int, sk: int, head_dim: int, v_head_dim: int | None = None
) -> list[NDArray[Any]]:
    random = np.random.default_rng(sq + head_dim)
    v_head_dim = head_dim if v_head_dim is None else v_head_dim
    shapes = (
        (BATCH, sq, HEADS, head_dim), (BATCH, sk, KV_HEADS, head_dim),
        (BATCH, sk, KV_HEADS, v_head_dim),
    )  # fmt: skip
    return [random.standard_normal(shape, np.float32).astype(NUMPY[dtype]) for shape in shapes]


@pytest.mark.parametrize(
    ("dtype", "head_dim", "v_head_dim", "mask", "schedule"),
    [
        ("e4m3", 64, 64, am.causal(), "fair"),
        ("e5m2", 64, 64, am.full(), "adversarial"),
        ("e4m3", 128, 128, am.causal(), "adversarial"),
        ("e5m2", 128, 128, am.sliding_window(60, 40), "fair"),
        ("e4m3", 256, 256, am.causal(), "fair"),  # one query tile; O takes more room than Q
        ("e5m2", 80, 48, am.full(), "fair"),  # K of a product and lines of a tile are not full
    ],
)
def test_products_of_bytes(
    dtype: str, head_dim: int, v_head_dim: int, mask: am.Mask, schedule: Any
) -> None:
    q, k, v = operands(dtype, 150, 300, head_dim, v_head_dim)
    spec = am.mha(
        heads=HEADS, kv_heads=KV_HEADS, head_dim=head_dim, v_head_dim=v_head_dim, dtype=dtype,
        mask=mask,
    )  # fmt: skip
    bundle = am.compile(spec)
    assert bundle.manifest.report["spill_bytes"] == 0
    o = poisoned((*q.shape[:3], v_head_dim), np.dtype(ml_dtypes.bfloat16))
    lse = poisoned((BATCH, HEADS, 150), np.dtype(np.float32))
    am.load(bundle)(q, k, v, o, lse, device=EmulatorDevice(schedule=schedule))
    verdict = check_attention(q, k, v, o, lse, mask=mask)
    assert verdict.ok, str(verdict)
