"""Gradients through score modifiers and predicates on the emulator, in both directions."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.masks import Mask
from attn_mlir.trace import MaskMod, Recorded, ScoreMod, trace, where
from attn_mlir.validation.numerics.gradients import TARGETS, draw, gradients, judge

HEADS, SQ, SK = 2, 70, 100
Of = Literal["kv", "q"]
each = pytest.mark.parametrize("of", ["kv", "q"])
random = np.random.default_rng(0)
BIAS = random.standard_normal((HEADS, SQ, SK), np.float32)
SLOPES = 2.0 ** -np.arange(1, HEADS + 1, dtype=np.float32)


def recorded(score_mod: ScoreMod | None, mask_mod: MaskMod | None = None) -> Recorded:
    program, arrays = trace(score_mod, mask_mod)
    assert program is not None
    return Recorded(program, arrays)


MODS: dict[str, tuple[ScoreMod | None, MaskMod | None]] = {
    "softcap": (am.mods.softcap(2.0), None),
    "alibi": (am.mods.alibi(SLOPES), None),
    "bias": (lambda s, b, h, q, k: s + BIAS[h, q, k], None),
    "keep": (None, lambda b, h, q, k: (q * 7 + k * 3 + h) % 5 < 2),
    "coordinates": (lambda s, b, h, q, k: s * 0 + (q - 2 * k + 3 * h) / 64, None),
    "kinks": (lambda s, b, h, q, k: where(s > 0, s * BIAS[h, q, k], abs(s) / 2), None),
    "trap": (lambda s, b, h, q, k: s / (q - k + 70), lambda b, h, q, k: q - k > -70),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@each
@pytest.mark.parametrize("name", MODS)
@pytest.mark.parametrize("mask", [am.full(), am.causal()], ids=str)
@pytest.mark.long(
    but=(
        "full-softcap-kv-sm_90a", "causal-softcap-q-sm_100a",
        "full-alibi-kv-sm_100a", "full-alibi-q-sm_90a",
        "causal-bias-kv-sm_90a", "causal-bias-q-sm_100a",
        "causal-keep-kv-sm_100a", "causal-keep-q-sm_90a",
        "full-coordinates-kv-sm_90a", "causal-coordinates-q-sm_100a",
        "full-kinks-kv-sm_100a", "full-kinks-q-sm_90a",
        "causal-trap-kv-sm_90a", "full-trap-q-sm_100a",
    )
)  # fmt: skip
def test_modifiers(name: str, mask: Mask, of: Of, target: str) -> None:
    """A derivative that is 1, none, a choice, and infinite where a predicate hides the score."""
    mods = recorded(*MODS[name])
    request = gradients(HEADS, 1, 64, 64, mask, of=of, mods=mods)
    judge(request, [draw(request, SQ, SK, 0.125, 1, mods=mods)], 0.125, mods=mods, target=target)
