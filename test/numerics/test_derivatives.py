"""Derivatives of modifiers run in kernels, as `score_mod`, on the emulator; all are judged."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import mods
from attn_mlir import trace as tr
from attn_mlir.dialect.attn.programs.derivative import differentiated
from attn_mlir.reference import check_attention
from attn_mlir.trace import Recorded, trace

pytestmark = pytest.mark.slow
BATCH, LENGTH, HEADS = 1, 72, 2
RANDOM = np.random.default_rng(3)
SLOPES = RANDOM.standard_normal(HEADS).astype(np.float32)
TABLE = RANDOM.standard_normal((HEADS, LENGTH)).astype(np.float32)


def smooth(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Every operation of floats whose derivative is no step."""
    x = np.exp(-abs(s)) + np.log(s * s + 1) + np.log2(abs(s) + 1) + np.exp2(-abs(s)) + np.sin(s)
    x = x + np.sqrt(s * s + 1) + np.tanh(s) * np.cos(s) + np.log1p(s * s) + np.expm1(s * 0.1)
    x = x + tr.erf(s) + tr.sigmoid(s) * tr.softplus(s) + tr.silu(s) + 1 / (s * s + 2)
    x = x + tr.power(s * s + 0.5, 1.7) + tr.power(s * s + 1.0, s * 0.1) + (s * s) % 64.0
    return x + np.where(q > k, s * SLOPES[h], s * s * TABLE[h, k])


def gated(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return tr.tanh(s * TABLE[h, q]) * SLOPES[h] - tr.maximum(s, TABLE[h, k])


@pytest.mark.parametrize(
    ("mod", "which"),
    [(mods.softcap(2.0), "slope"), (smooth, "slope"), (gated, "slope"), (gated, "read")],
)
@pytest.mark.long("mod0-slope", "gated-slope")
def test_derivatives_run_as_modifiers(mod: Any, which: str) -> None:
    program, arrays = trace(mod)
    assert program is not None
    derivative = differentiated(program)
    node = derivative.slope if which == "slope" else derivative.reads[0].adjoint
    made = derivative.program(node)
    recorded = Recorded(made, {t.name: arrays[t.name] for t in made.tensors})
    shape = (BATCH, LENGTH, HEADS, 64)
    q, k, v = (RANDOM.standard_normal(shape).astype(ml_dtypes.bfloat16) for _ in range(3))
    device = am.EmulatorDevice()
    o, lse = am.attention(q, k, v, score_mod=recorded, return_lse=True, device=device)
    verdict = check_attention(q, k, v, o, lse, score_mod=recorded)
    assert verdict.ok, str(verdict)
