"""A check on a GPU of `attention_backward` against its formula in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import attn_mlir as am
from attn_mlir.api.plan import Step
from attn_mlir.api.planners import only_planned
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.gpu.check import HOPPER, Machine, check, module

HEADS, KV_HEADS = 4, 2
HEAD_DIMS = (64, 128)
MASKS = (am.full(), am.causal(), am.sliding_window(90, 20))
SIZES = ((300, 300), (129, 500))  # queries, keys
MULTIPROCESSORS = 132  # of an H100 and of an H200: the choice of kernels depends on it
ERROR = 2.0**-6  # of the largest gradient: a few roundings of P, dS and the results to bf16


def _calls() -> Iterator[tuple[list[Any], am.Mask]]:
    """q, k, v and the gradient of O, and the mask."""
    bfloat16 = module("ml_dtypes").bfloat16
    random = np.random.default_rng(0)
    for head_dim in HEAD_DIMS:
        for mask in MASKS:
            for queries, keys in SIZES:
                rows = ((queries, HEADS), (keys, KV_HEADS), (keys, KV_HEADS), (queries, HEADS))
                shapes = [(2, *row, head_dim) for row in rows]
                yield [random.standard_normal(x).astype(bfloat16) for x in shapes], mask


def _asks(target: str) -> None:
    device = EmulatorDevice(target=target, multiprocessors=MULTIPROCESSORS)
    for operands, mask in _calls():
        for step in steps_of_gradients(operands, mask, device):
            am.compile(step.request, target=target)


def steps_of_gradients(operands: list[Any], mask: am.Mask, device: Any) -> list[Step]:
    """The launches of attention and of its gradients.

    Args:
      operands: q, k, v and the gradient of O, [batch, positions, heads, head_dim].
    """
    q, k, v, do = operands
    forward = am.plan(q, k, v, mask=mask, return_lse=True, device=device)
    lse = np.zeros((q.shape[0], q.shape[2], q.shape[1]), np.float32)
    backward = only_planned(am.attention_backward)
    return [*forward.steps, *backward(q, k, v, do, lse, do, mask=mask, device=device).steps]


@check(targets=(HOPPER,), asks=_asks)
def gradients_of_attention(machine: Machine) -> None:
    """dq, dk and dv of every mask and head size; the same bits twice."""
    for operands, mask in _calls():
        q, k, v, do = operands
        o, lse = am.attention(q, k, v, mask=mask, return_lse=True, device="cuda")
        found = am.attention_backward(q, k, v, o, lse, do, mask=mask, device="cuda")
        again = am.attention_backward(q, k, v, o, lse, do, mask=mask, device="cuda")
        truth = am.reference.attention_backward_f64(q, k, v, o, lse, do, mask=mask)
        for name, right in zip(truth._fields, truth, strict=True):
            got, same = getattr(found, name), getattr(again, name)
            assert got.tobytes() == same.tobytes(), name
            error = np.abs(got.astype(np.float64) - right).max() / np.abs(right).max()
            assert error < ERROR, f"{mask}, {q.shape}, {k.shape}: {name} is {error:.4f} off"
