"""Gradients of attention with sinks, and of the sinks, on the emulator."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.backward.row_sums import SumPartsSpec, SumRowsSpec
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics import gradients as cases
from attn_mlir.validation.numerics.gradients import NUMPY, called, draw, gradients

RAGGED = Lengths(ragged_q=True, ragged_k=True)
USED = Lengths(used_q=True, used_k=True)
judge = partial(cases.judge, by=called)
everywhere = pytest.mark.parametrize("target", cases.TARGETS)


def logits(heads: int, about: float, dtype: str = "f32") -> Any:
    kind = {**NUMPY, "f32": np.float32}[dtype]
    return (about + np.random.default_rng(1).standard_normal(heads)).astype(kind)


@everywhere
@pytest.mark.parametrize(
    ("sizes", "lengths", "about", "with_dlse"),
    [
        ([(100, 70)], DENSE, 1.0, False),
        ([(100, 70)], DENSE, 1.0, True),
        ([(70, 70)], DENSE, 200.0, True),
        ([(70, 70)], DENSE, -200.0, False),
        ([(0, 30), (90, 70), (20, 5)], RAGGED, 2.0, True),
    ],
    ids=["lse", "weights", "all taken", "none taken", "ragged"],
)
@pytest.mark.long(but=("weights-sm_90a", "lse-sm_100a", "ragged-sm_100a"))
def test_operands(
    sizes: list[tuple[int, int]], lengths: Lengths, about: float, with_dlse: bool, target: str
) -> None:
    """The sink within the LSE or, with a gradient of that, as a factor of rows."""
    request, sinks = gradients(2, 1, 64, 64, am.causal(), lengths=lengths), logits(2, about)
    made = [
        draw(request, *x, 0.125, n, with_dlse=with_dlse, sinks=sinks) for n, x in enumerate(sizes)
    ]
    judge(request, made, 0.125, sinks=sinks, target=target)


@everywhere
@pytest.mark.parametrize(
    ("dtype", "lengths"), [("f32", DENSE), ("bf16", RAGGED), ("f16", USED)], ids=str
)
@pytest.mark.long(but=("f32-*-sm_100a", "bf16-*-sm_90a", "f16-*-sm_100a"))
def test_sinks(dtype: str, lengths: Lengths, target: str) -> None:
    """In their own dtype; what is behind the rows of sequences does not count."""
    request, sinks = gradients(3, 1, 64, 64, am.causal(), lengths=lengths), logits(3, 1.0, dtype)
    sizes = (70, 70) if lengths == DENSE else (40, 70)
    given = [draw(request, n, n, 0.125, n, sinks=sinks) for n in sizes]
    device = EmulatorDevice("adversarial", 1, multiprocessors=2, target=target, check="all")
    tensors = cases.stored(lengths, given, ["q", "k", "v", "o", "lse", "do", "dlse"])
    found = am.attention_backward(**tensors, mask=am.causal(), sinks=sinks, device=device)
    names = ("q", "k", "v", "o", "lse", "do")
    true = np.zeros(3)
    for one in given:
        batch = {name: getattr(one, name)[None] for name in names}
        part = am.reference.attention_backward_f64(**batch, mask=am.causal(), sinks=sinks).dsinks
        assert part is not None
        true += part
    unit = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}[dtype]
    size = sum(np.abs(one.o.astype(np.float64) * one.do).sum((0, 2)) for one in given)
    assert found.dsinks.dtype == sinks.dtype
    error = np.abs(found.dsinks.astype(np.float64) - true)
    assert np.all(error <= unit * np.abs(true) + cases.EXACT * size)


def test_sums() -> None:
    rows = np.random.default_rng(0).standard_normal((2, 600, 3, 1), np.float32)
    sums = np.full((2, 3), np.nan, np.float32)
    device = EmulatorDevice("adversarial", 1, multiprocessors=2, check="all")
    kernel = am.load(am.compile(SumRowsSpec(heads=3)))
    kernel.launch({"rows": rows, "sums": sums}, device=device)
    assert np.abs(sums - rows[..., 0].astype(np.float64).sum(1)).max() < 1e-4


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("shape", [(1, 200), (2, 1), (77, 130)])
@pytest.mark.long("*-bf16", "*-f16")
def test_sums_of_parts(shape: tuple[int, int], dtype: str) -> None:
    parts = np.random.default_rng(0).standard_normal(shape, np.float32)
    kind = {"f32": np.float32, **cases.NUMPY}[dtype]
    sums = np.full(shape[1], np.nan, kind)
    device = EmulatorDevice("adversarial", 1, multiprocessors=2, check="all")
    kernel = am.load(am.compile(SumPartsSpec(dtype=dtype)))
    kernel.launch({"parts": parts, "sums": sums}, device=device)
    true = parts.astype(np.float64).sum(0)
    unit = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}[dtype]
    assert np.all(np.abs(sums.astype(np.float64) - true) <= unit * np.abs(true) + 2.0**-16)
