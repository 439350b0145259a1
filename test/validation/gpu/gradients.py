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


def _options() -> list[dict[str, Any]]:
    """Masks alone, then modifiers, with a gradient of what they capture, and sinks."""
    slopes, sinks = np.float32([0.5, 0.25, 0.125, 1.0]), np.float32([1.0, -1.0, 3.0, 0.0])
    alibi: dict[str, Any] = {"score_mod": am.mods.alibi(slopes), "captured": ("slopes",)}
    distances = np.random.default_rng(1).standard_normal((HEADS, 40)).astype(np.float32)
    return [
        *({"mask": mask} for mask in MASKS),
        {"mask": am.causal(), "score_mod": am.mods.softcap(2.0)},
        {"mask": am.causal(), **alibi, "sinks": sinks},
        {"score_mod": am.mods.relative_bias(distances), "captured": ("table",)},
        {"mask_mod": lambda b, h, q, k: (q * 7 + k * 3 + h) % 5 < 2},
    ]


def _calls() -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """q, k, v and the gradient of O, and the options."""
    bfloat16 = module("ml_dtypes").bfloat16
    random = np.random.default_rng(0)
    for head_dim in HEAD_DIMS:
        for options in _options():
            for queries, keys in SIZES:
                rows = ((queries, HEADS), (keys, KV_HEADS), (keys, KV_HEADS), (queries, HEADS))
                shapes = [(2, *row, head_dim) for row in rows]
                yield [random.standard_normal(x).astype(bfloat16) for x in shapes], options


def _asks(target: str) -> None:
    device = EmulatorDevice(target=target, multiprocessors=MULTIPROCESSORS)
    for operands, options in _calls():
        for step in steps_of_gradients(operands, options, device):
            am.compile(step.request, target=target)


def steps_of_gradients(operands: list[Any], options: dict[str, Any], device: Any) -> list[Step]:
    """The launches of attention and of its gradients.

    Args:
      operands: q, k, v and the gradient of O, [batch, positions, heads, head_dim], or with offsets
        [total, heads, head_dim].
      options: of `attention_backward`.
    """
    q, k, v, do = operands
    forward = am.plan(q, k, v, **_forward(options), return_lse=True, device=device)
    lse = np.zeros((*q.shape[:-3], q.shape[-2], q.shape[-3]), np.float32)
    backward = only_planned(am.attention_backward)
    plans = (
        backward(q, k, v, do, lse, do, **options, deterministic=same, device=device)
        for same in (True, False)
    )
    return [*forward.steps, *(step for plan in plans for step in plan.steps)]


def _forward(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `attention`."""
    return {name: x for name, x in options.items() if name != "captured"}


def _named(found: Any) -> dict[str, Any]:
    """All gradients by name."""
    fields = {name: x for name, x in found._asdict().items() if x is not None}
    captured = fields.pop("captured")
    return {**fields, **captured}


@check(targets=(HOPPER,), asks=_asks)
def gradients_of_attention(machine: Machine) -> None:
    """Every gradient, for every mask, modifier and head size: with the same bits twice, and where
    they may differ.
    """
    for operands, options in _calls():
        q, k, v, do = operands
        o, lse = am.attention(q, k, v, **_forward(options), return_lse=True, device="cuda")
        found = am.attention_backward(q, k, v, o, lse, do, **options, device="cuda")
        again = am.attention_backward(q, k, v, o, lse, do, **options, device="cuda")
        free = am.attention_backward(
            q, k, v, o, lse, do, **options, deterministic=False, device="cuda"
        )
        truth = am.reference.attention_backward_f64(q, k, v, o, lse, do, **options)
        made, same, other = _named(found), _named(again), _named(free)
        for name, right in _named(truth).items():
            assert made[name].tobytes() == same[name].tobytes(), name
            for got in (made[name], other[name]):
                error = np.abs(got.astype(np.float64) - right).max() / np.abs(right).max()
                assert error < ERROR, f"{options}, {q.shape}, {k.shape}: {name} is {error:.4f} off"
