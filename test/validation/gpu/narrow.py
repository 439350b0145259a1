"""Checks of attention of 8 bits on a GPU, whose tensor core keeps fewer bits of sums than the emulator
does by default."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import attn_mlir as am
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.validation.gpu.check import HOPPER, Machine, check, module

DTYPES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
HEAD_DIMS = ((64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (80, 176))
MASKS = (am.full(), am.causal(), am.sliding_window(300, 0))
SHAPES = ((1, 3, 1.0), (129, 257, 0.0), (300, 1000, 0.0), (64, 5000, 1.0))
"""Queries, keys, and the mean of values: of values about 1 one sees what a long sum loses."""
FACTORS = {"q_descale": 0.5, "k_descale": 1.5, "v_descale": 3.0}
BATCH, HEADS, KV_HEADS = 2, 4, 2

Case = tuple[str, tuple[int, int], am.Mask]


def _cases() -> list[Case]:
    """Both dtypes with all head sizes; masks in turn."""
    kinds = itertools.product(DTYPES, HEAD_DIMS)
    return [(*kind, MASKS[number % len(MASKS)]) for number, kind in enumerate(kinds)]


def _operands(case: Case, shape: tuple[int, int, float]) -> Any:
    """q, k and v."""
    dtype, (d, dv), _ = case
    sq, sk, mean = shape
    kind = getattr(module("ml_dtypes"), DTYPES[dtype])
    random = np.random.default_rng(sk)
    shapes = ((sq, HEADS, d), (sk, KV_HEADS, d), (sk, KV_HEADS, dv))
    q, k, v = (random.standard_normal((BATCH, *s), np.float32) for s in shapes)
    v = v / 4 + mean if mean else v
    return [x.astype(kind) for x in (q, k, v)]


def _options(case: Case) -> dict[str, Any]:
    """The mask and the factors."""
    factors = {name: np.float32([number]) for name, number in FACTORS.items()}
    return {"mask": case[2], **factors}


def _results(case: Case, operands: Any, device: Any) -> Any:
    """O and LSE in registers."""
    out_dtype = "f32" if case[1][1] <= 128 else "bf16"
    options = {"schedule": "mha-registers", "num_splits": 1, "out_dtype": out_dtype}
    return am.attention(*operands, return_lse=True, device=device, **options, **_options(case))


def _asks(target: str) -> None:
    """Asks for the kernels of `attention_of_8_bits`."""
    for case, shape in itertools.product(_cases(), SHAPES):
        _results(case, _operands(case, shape), IdleDevice(target))


@check(targets=(HOPPER,), asks=_asks)
def attention_of_8_bits(machine: Machine) -> None:
    """Every element of O and LSE, for both dtypes, head sizes, masks and shapes."""
    wrong: list[str] = []
    for case, shape in itertools.product(_cases(), SHAPES):
        operands = _operands(case, shape)
        o, lse = _results(case, operands, "cuda")
        verdict = am.reference.check_attention(*operands, o, lse, **_options(case))
        if not verdict.ok:
            wrong.append(f"{case}, {shape}: {verdict}")
    assert not wrong, "\n".join(wrong)
