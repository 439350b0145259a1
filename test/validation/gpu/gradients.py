"""A check on a GPU of `attention_backward` against its formula in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import attn_mlir as am
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.gpu.check import HOPPER, Machine, check, module

HEADS, KV_HEADS = 4, 2
HEAD_DIMS = (64, 128)
MASKS = (am.full(), am.causal(), am.sliding_window(90, 20))
ASKED, JUDGED = ((30, 40),), ((300, 300), (129, 500))  # queries, keys: kernels serve all sizes
ERROR = 2.0**-6  # of the largest gradient: a few roundings of P, dS and the results to bf16


def _calls(sizes: tuple[tuple[int, int], ...]) -> Iterator[tuple[list[Any], am.Mask]]:
    """q, k, v and the gradient of O, and the mask."""
    bfloat16 = module("ml_dtypes").bfloat16
    random = np.random.default_rng(0)
    for head_dim in HEAD_DIMS:
        for mask in MASKS:
            for queries, keys in sizes:
                rows = ((queries, HEADS), (keys, KV_HEADS), (keys, KV_HEADS), (queries, HEADS))
                shapes = [(2, *row, head_dim) for row in rows]
                yield [random.standard_normal(x).astype(bfloat16) for x in shapes], mask


def _gradients(operands: list[Any], mask: am.Mask, device: Any) -> tuple[Any, am.Gradients]:
    """O and LSE, and the gradients of q, k and v."""
    q, k, v, do = operands
    o, lse = am.attention(q, k, v, mask=mask, return_lse=True, device=device)
    return (o, lse), am.attention_backward(q, k, v, o, lse, do, mask=mask, device=device)


def _asks(target: str) -> None:
    for operands, mask in _calls(ASKED):
        _gradients(operands, mask, EmulatorDevice(target=target, multiprocessors=132))


@check(targets=(HOPPER,), asks=_asks)
def gradients_of_attention(machine: Machine) -> None:
    """dq, dk and dv of every mask and head size; the same bits twice."""
    for operands, mask in _calls(JUDGED):
        q, k, v, do = operands
        (o, lse), found = _gradients(operands, mask, "cuda")
        again = am.attention_backward(q, k, v, o, lse, do, mask=mask, device="cuda")
        truth = am.reference.attention_backward_f64(q, k, v, o, lse, do, mask=mask)
        for name, got, same, right in zip(found._fields, found, again, truth, strict=True):
            assert got.tobytes() == same.tobytes(), name
            error = np.abs(got.astype(np.float64) - right).max() / np.abs(right).max()
            assert error < ERROR, f"{mask}, {q.shape}, {k.shape}: {name} is {error:.4f} off"
