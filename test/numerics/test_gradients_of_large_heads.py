"""Gradients of heads above 128 on the emulator: of small tiles, and divided by two groups."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.backward.gradients import KvGradientsSpec
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.trace import MaskMod, Recorded, ScoreMod, trace, where
from attn_mlir.validation.numerics import gradients as cases
from attn_mlir.validation.numerics.gradients import called, draw, expected, gradients, run

judge = partial(cases.judge, by=called)
RAGGED = Lengths(ragged_q=True, ragged_k=True)
BIAS = np.random.default_rng(0).standard_normal((2, 70, 90), np.float32)
everywhere = pytest.mark.parametrize("target", cases.TARGETS)


@everywhere
@pytest.mark.parametrize(
    ("heads", "sizes", "mask", "dtype", "lengths", "with_dlse"),
    [
        ((2, 1, 192, 128), [(130, 100)], am.causal(), "bf16", DENSE, True),
        ((2, 1, 256, 128), [(100, 70)], am.causal(), "bf16", DENSE, True),
        ((1, 1, 136, 240), [(70, 130)], am.sliding_window(60, 30), "f16", DENSE, False),
        ((2, 2, 192, 192), [(70, 90)], am.full(), "f16", DENSE, False),
        ((2, 1, 200, 120), [(70, 40)], am.causal() | am.prefix_lm(9), "bf16", DENSE, True),
        ((2, 1, 64, 256), [(0, 70), (70, 65), (65, 0)], am.causal(), "bf16", RAGGED, True),
        ((2, 1, 192, 40), [(40, 70), (0, 65)], am.full(), "bf16", Lengths(used_q=True, used_k=True), False),
    ],
    ids=["192-128", "256-128", "window", "192", "prefix", "ragged", "used"],
)  # fmt: skip
@pytest.mark.long(
    but=("192-128-sm_90a", "256-128-sm_100a", "192-sm_90a", "192-sm_100a", "ragged-sm_90a")
)
def test_operands(
    heads: tuple[int, int, int, int],
    sizes: list[tuple[int, int]],
    mask: Mask,
    dtype: str,
    lengths: Lengths,
    with_dlse: bool,
    target: str,
) -> None:
    request, scale = gradients(*heads, mask, dtype, lengths=lengths), heads[2] ** -0.5
    given = [draw(request, *x, scale, n, with_dlse=with_dlse) for n, x in enumerate(sizes)]
    judge(request, given, scale, target=target)


@pytest.mark.parametrize(
    ("heads", "size", "mask"), [((2, 1, 256, 256), (100, 70), am.causal())], ids=["causal"]
)
def test_the_largest_heads(
    heads: tuple[int, int, int, int], size: tuple[int, int], mask: Mask
) -> None:
    """In tensor memory their gradients of keys and values leave no room for scores."""
    request = gradients(*heads, mask)
    given = [draw(request, *size, 0.0625, 1)]
    judge(request, given, 0.0625)
    with pytest.raises(SpecError, match="head_dim must be at most 384 with v_head_dim, got 256"):
        judge(request, given, 0.0625, target="sm_100a")


def recorded(score_mod: ScoreMod | None, mask_mod: MaskMod | None = None) -> Recorded:
    program, arrays = trace(score_mod, mask_mod)
    assert program is not None
    return Recorded(program, arrays)


MODS: dict[str, tuple[ScoreMod | None, MaskMod | None]] = {
    "softcap": (am.mods.softcap(2.0), None),
    "keep": (None, lambda b, h, q, k: (q * 7 + k * 3 + h) % 5 < 2),
    "kinks": (lambda s, b, h, q, k: where(s > 0, s * BIAS[h, q, k], abs(s) / 2), None),
}


@everywhere
@pytest.mark.parametrize("name", MODS)
@pytest.mark.parametrize("sizes", [(192, 128), (192, 192)], ids=str)
@pytest.mark.long(but=("(192, 128)-softcap-sm_100a", "(192, 192)-softcap-sm_90a"))
def test_modifiers(name: str, sizes: tuple[int, int], target: str) -> None:
    mods = recorded(*MODS[name])
    request, scale = gradients(2, 1, *sizes, am.causal(), mods=mods), sizes[0] ** -0.5
    cases.judge(
        request, [draw(request, 70, 90, scale, 1, mods=mods)], scale, mods=mods, target=target
    )


@everywhere
@pytest.mark.parametrize("sizes", [(192, 128), (192, 192)], ids=str)
@pytest.mark.long(but=("(192, 192)-sm_90a",))
def test_sinks(sizes: tuple[int, int], target: str) -> None:
    """With a gradient of the LSE, so that rows have weights, which both groups need."""
    request, scale = gradients(2, 1, *sizes, am.causal()), sizes[0] ** -0.5
    sinks: Any = np.array([0.5, 3.0], np.float32)
    judge(
        request, [draw(request, 70, 50, scale, 1, sinks=sinks)], scale, sinks=sinks, target=target
    )


def windows(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Other ones for each head."""
    del b
    return k // 64 <= q // 64 + h


@everywhere
@pytest.mark.parametrize("sizes", [(192, 128), (192, 192)], ids=str)
@pytest.mark.long(but=("(192, 192)-sm_100a",))
def test_block_masks(sizes: tuple[int, int], target: str) -> None:
    """Lists of blocks of 128, which tiles are smaller than."""
    mods, scale = recorded(None, windows), sizes[0] ** -0.5
    request = gradients(2, 1, *sizes, mods=mods)
    one = draw(request, 140, 150, scale, 1, mods=mods, with_dlse=False)
    tensors = {x: getattr(one, x)[None] for x in ("q", "k", "v", "o", "lse", "do")}
    blocks = am.block_mask(windows, 1, 2, 140, 150, block_size=128)
    device = EmulatorDevice("adversarial", 1, multiprocessors=2, target=target, check="all")
    found = am.attention_backward(**tensors, block_mask=blocks, device=device)
    for name, (true, bound) in expected(request, one, scale, mods).items():
        error = np.abs(getattr(found, name)[0].astype(np.float64) - true)
        assert np.all(error <= bound), name


def test_the_result_does_not_depend_on_timing() -> None:
    request = gradients(2, 1, 192, 192, am.causal())
    given = [draw(request, 70, 150, 0.07, 1)]
    first, *others = (run(request, given, 0.07, seed)[0] for seed in range(3))
    for other in others:
        assert all(first[name].tobytes() == other[name].tobytes() for name in request.results)


def test_groups_that_divide_gradients_compute_scores_once(product_counts: list[int]) -> None:
    """Each product multiplies 16 of K: of a head, or of the queries of a tile."""
    request = gradients(1, 1, 256, 192)
    assert isinstance(request, KvGradientsSpec)
    cases.judge(request, [draw(request, 130, 70, 0.06, 1)], 0.06)
    tiles, queries = 2 * 3, 64
    assert product_counts == [tiles * ((256 + 192) // 16 + 2 * queries // 16)]
