"""Attention on a data-centre Blackwell GPU: the same judgement as on the emulator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.cli.experiment import run_attention
from attn_mlir.reference import check_attention
from attn_mlir.runtime.devices import driver

pytestmark = [pytest.mark.gpu, pytest.mark.sm_100]


@pytest.fixture(autouse=True)
def blackwell(gpu: driver.Gpu) -> None:
    if "sm_100a" not in gpu.targets:
        pytest.skip(f"{gpu.name} is {gpu.targets[0]}, this needs sm_100a")


@pytest.mark.parametrize("mask", [am.full(), am.causal()])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("sq", "sk"), [(1, 513), (129, 257), (300, 77), (640, 640), (2048, 2048)])
def test_numbers(sq: int, sk: int, head_dim: int, dtype: str, mask: am.Mask) -> None:
    spec = am.mha(heads=8, kv_heads=2, head_dim=head_dim, dtype=dtype, mask=mask)
    trial = run_attention(am.compile(spec), batch=2, sq=sq, sk=sk, mask=mask, device="cuda")
    assert trial.comparison.ok, str(trial.comparison)


def test_the_emulator_and_the_gpu_agree() -> None:
    spec = am.mha(heads=2, kv_heads=1, head_dim=64, mask=am.causal())
    kernel = am.Kernel(am.compile(spec))
    random = np.random.default_rng(0)
    q, k, v = (
        random.standard_normal((1, 150, heads, 64)).astype(ml_dtypes.bfloat16)
        for heads in (2, 1, 1)
    )
    results: list[Any] = []
    for device in ("cuda", "emulator"):
        o, lse = np.full_like(q, np.nan), np.full((1, 2, 150), np.nan, np.float32)
        kernel(q, k, v, o, lse, scale=0.125, device=device)
        assert check_attention(q, k, v, o, lse, mask=am.causal()).ok
        results.append((o.astype(np.float64), lse))
    assert np.abs(results[0][0] - results[1][0]).max() < 0.02
    assert np.abs(results[0][1] - results[1][1]).max() < 1e-3


def test_torch_on_its_stream() -> None:
    torch: Any = pytest.importorskip("torch")
    q, k, v = (
        torch.randn(2, 300, heads, 128, device="cuda", dtype=torch.bfloat16) for heads in (8, 2, 2)
    )
    with torch.cuda.stream(torch.cuda.Stream()):
        o = am.attention(q, k, v, mask=am.causal())
    torch.cuda.synchronize()
    assert o.is_cuda and torch.isfinite(o.float()).all()
