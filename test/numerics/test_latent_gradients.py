"""Gradients of latent attention before absorption on the emulator, element by element."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.validation.numerics import latent_gradient_draws
from attn_mlir.validation.numerics.gradients import TARGETS
from attn_mlir.validation.numerics.latent_gradient_draws import LatentGradients

RAGGED = Lengths(ragged_q=True, ragged_k=True)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "problem",
    [
        LatentGradients([(70, 130)], mask=am.causal(), are_parts=True),
        LatentGradients([(65, 0), (0, 70), (70, 65)], (2, 1), (64, 16, 40), dtype="f16", lengths=RAGGED),
    ],
    ids=["192-128", "ragged"],
)  # fmt: skip
@pytest.mark.long("192-128-sm_90a", "ragged-*")
def test_operands(problem: LatentGradients, target: str) -> None:
    replace(problem, target=target).run()


@pytest.mark.long
def test_the_result_does_not_depend_on_timing() -> None:
    one, *others = (LatentGradients([(70, 130)], (4, 2)).run(_device(seed)) for seed in range(3))
    for other in others:
        for name, found in one[0].items():
            assert np.array_equal(found, other[0][name])


def _device(seed: int) -> am.EmulatorDevice:
    return am.EmulatorDevice("adversarial", seed, multiprocessors=1 + seed, target="sm_100a")


@pytest.mark.parametrize("number", range(4))
@pytest.mark.long
def test_draws(number: int) -> None:
    assert not latent_gradient_draws.DRAWS.failure(number)
