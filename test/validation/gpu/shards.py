"""Checks on a GPU of attention over shards of a sequence: offsets, and multiprocessors left free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import attn_mlir as am
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.gpu.check import Machine, check, module

QUERIES, KEYS = 300, 500
QUERY_SHARDS, KEY_SHARDS = ((0, 170), (170, QUERIES)), ((0, 230), (230, KEYS))
MARGIN = 30  # multiprocessors


def _operands() -> tuple[Any, Any, Any]:
    ml_dtypes = module("ml_dtypes")
    random = np.random.default_rng(0)
    shapes = ((1, QUERIES, 4, 64), (1, KEYS, 2, 64), (1, KEYS, 2, 64))
    q, k, v = (random.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes)
    return q, k, v


def _shard(call: Callable[..., Any], rows: slice, columns: slice, **options: Any) -> Any:
    """`am.attention` or `am.plan` of some queries and some keys of the causal problem."""
    q, k, v = _operands()
    return call(
        *(q[:, rows].copy(), k[:, columns].copy(), v[:, columns].copy()),
        mask=am.causal(),
        q_offset=KEYS - QUERIES + rows.start,
        k_offset=columns.start,
        return_lse=True,
        **options,
    )


def _asks(target: str) -> None:
    device = EmulatorDevice(target=target, multiprocessors=132)
    for rows in QUERY_SHARDS:
        for columns in ((0, KEYS), *KEY_SHARDS):
            plan = _shard(am.plan, slice(*rows), slice(*columns), device=device, sm_margin=MARGIN)
            for step in plan.steps:
                am.compile(step.request, target=target)


@check(asks=_asks)
def shards_are_the_whole(machine: Machine) -> None:
    """Shards of queries have their rows of the whole; shards of keys add up to it."""
    q, k, v = _operands()
    truth = am.reference.attention_f64(q, k, v, mask=am.causal())
    options = {"device": "cuda", "sm_margin": MARGIN}
    for begin, end in QUERY_SHARDS:
        rows = slice(begin, end)
        o, lse = _shard(am.attention, rows, slice(0, KEYS), **options)
        assert np.abs(o.astype(np.float64) - truth.o[:, rows]).max() < 0.02
        assert np.abs(lse - truth.lse[:, :, rows]).max() < 1e-3
        parts = [_shard(am.attention, rows, slice(*columns), **options) for columns in KEY_SHARDS]
        mass = np.exp([lse.astype(np.float64) for _, lse in parts])
        weights = (mass / mass.sum(0)).transpose(0, 1, 3, 2)[..., None]
        merged = sum(w * o.astype(np.float64) for w, (o, _) in zip(weights, parts, strict=True))
        assert np.abs(merged - truth.o[:, rows]).max() < 0.02
        assert np.abs(np.log(mass.sum(0)) - truth.lse[:, :, rows]).max() < 1e-3
