"""Gradients of attention with block masks on the emulator: lists of key and of query blocks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.trace import MaskMod, Recorded, trace
from attn_mlir.validation.numerics import gradients as cases
from attn_mlir.validation.numerics.gradients import draw, expected, gradients

SQ, SK = 200, 330


def recorded(mask_mod: MaskMod) -> Recorded:
    program, arrays = trace(None, mask_mod)
    assert program is not None
    return Recorded(program, arrays)


def windows(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Other ones for each head; keys from 320 on are seen by nobody."""
    del b
    return (k // 64 <= q // 64 + h) & (k < 320)


def diagonal(b: Any, h: Any, q: Any, k: Any) -> Any:
    del b, h
    return q // 32 == k // 32


def believed() -> am.BlockMask:
    """Lists of the caller's, without a predicate."""
    count = -(-SQ // 32)
    indices = np.zeros((1, 1, count, -(-SK // 32)), np.int32)
    indices[0, 0, :, 0] = np.arange(count)
    numbers = np.ones((1, 1, count), np.int32)
    return am.BlockMask.from_kv_blocks(numbers, indices, sq=SQ, sk=SK, block_size=32)


MASKS = {
    "by head": (windows, lambda: am.block_mask(windows, 1, 4, SQ, SK, block_size=64)),
    "of head 0": (diagonal, lambda: am.block_mask(diagonal, 1, 1, SQ, SK, block_size=128)),
    "believed": (diagonal, believed),
}


@pytest.mark.parametrize("target", cases.TARGETS)
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.long("of head 0-*", "believed-*")
def test_block_masks(name: str, target: str) -> None:
    """Blocks of all heads of a group where keys stand still, and joined ones of lists."""
    mask_mod, make = MASKS[name]
    mods, device = recorded(mask_mod), partial(EmulatorDevice, "adversarial", 1, multiprocessors=2)
    request = gradients(4, 2, 64, 64, mods=mods)
    one = draw(request, SQ, SK, 0.125, 1, mods=mods, with_dlse=False)
    tensors = {x: getattr(one, x)[None] for x in ("q", "k", "v", "o", "lse", "do")}
    on = device(target=target, check="all")
    found = am.attention_backward(**tensors, block_mask=make(), device=on)
    for name, (true, bound) in expected(request, one, 0.125, mods).items():
        error = np.abs(getattr(found, name)[0].astype(np.float64) - true)
        assert np.all(error <= bound), name
