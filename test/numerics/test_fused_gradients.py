"""All gradients by one kernel, which adds those of queries to memory, beside the kernels for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.backward.gradients import GradientsSpec
from attn_mlir.compiling.compiler import compile as compile_request
from attn_mlir.runtime.devices.emulator import EmulatorDevice

SHARED = {"mask": am.causal()}
CASES: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "a group of its own multiplies": ((64, 64), SHARED),
    "the groups multiply": ((128, 128), SHARED),
    "columns past the head": ((120, 72), {"mask": am.full()}),
    "V is wider": ((40, 128), {"mask": am.sliding_window(20, 30)}),
    "some queries see no key": ((64, 64), {"mask": ~am.causal()}),
    "lengths": ((96, 96), {"mask": am.causal(), "seqused_q": [70, 0], "seqused_k": [90, 33]}),
}
SEEDS = [None, 1, 2]
MODE = {"check": "all", "target": "sm_90a"}
ROWS = {"seqused_q": 70, "seqused_k": 90}


def _operands(sizes: tuple[int, int], seed: int, queries: int, keys: int) -> list[Any]:
    """q, k, v and the gradient of O: two sequences, of a head of keys for two."""
    random = np.random.default_rng(seed)
    shapes = (
        (queries, 2, sizes[0]),
        (keys, 1, sizes[0]),
        (keys, 1, sizes[1]),
        (queries, 2, sizes[1]),
    )
    return [random.standard_normal((2, *x)).astype(ml_dtypes.bfloat16) for x in shapes]


def _device(seed: int | None) -> EmulatorDevice:
    return EmulatorDevice(**MODE) if seed is None else EmulatorDevice("adversarial", seed, **MODE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.long(
    "the groups multiply-None",
    "columns past the head-1",
    "V is wider-1",
    "V is wider-None",
    "*-2",
    "some queries see no key-1",
    "a group of its own multiplies-None",
    "lengths-None",
)
def test_the_gradients_of_separate_kernels(name: str, seed: int | None) -> None:
    """dk and dv bit by bit; dq has the same products in f32, added in another order.

    Rows past the end of a sequence hold no numbers: they are no part of any gradient.
    """
    sizes, given = CASES[name]
    lengths = {x: np.array(y, np.int32) for x, y in given.items() if x != "mask"}
    rows = {x: lengths.get(x, np.array([n, n], np.int32)) for x, n in ROWS.items()}
    q, k, v, do = _operands(sizes, 0, *ROWS.values())
    for sequence, (of_q, of_k) in enumerate(zip(*rows.values(), strict=True)):
        for array, count in ((q, of_q), (do, of_q), (k, of_k), (v, of_k)):
            array[sequence, count:] = np.nan
    call = {"mask": given["mask"], **lengths, "device": _device(seed)}
    o, lse = am.attention(q, k, v, **call, return_lse=True)
    of_keys = am.attention_backward(q, k, v, o, lse, do, **call, wanted=("k", "v"))
    of_queries = am.attention_backward(q, k, v, o, lse, do, **call, wanted=("q",))
    for deterministic in (False, True):
        found = am.attention_backward(q, k, v, o, lse, do, **call, deterministic=deterministic)
        for sequence, (of_q, of_k) in enumerate(zip(*rows.values(), strict=True)):
            for got, right in ((found.dk, of_keys.dk), (found.dv, of_keys.dv)):
                np.testing.assert_array_equal(got[sequence, :of_k], right[sequence, :of_k])
            got, right = (x.dq[sequence, :of_q].astype(np.float64) for x in (found, of_queries))
            # a rounding to bf16 of sums that differ in their last bits
            assert (np.abs(got - right) <= 2.0**-7 * np.abs(right) + 1e-5).all()


IN_TURN: dict[str, tuple[int, int, am.Mask]] = {
    "full": (70, 390, am.full()),
    "causal": (330, 330, am.causal()),
    "window": (400, 400, am.sliding_window(150, 40)),
}


@pytest.mark.parametrize("name", IN_TURN)
@pytest.mark.long("causal", "window")
def test_blocks_of_keys_add_in_turn(name: str) -> None:
    """The same bits of f32 in whatever order blocks are done, three or four of them at a time;
    without turns another order gives others.
    """
    queries, keys, mask = IN_TURN[name]
    q, k, v, do = (x[:1, :, :1] for x in _operands((64, 64), 3, queries, keys))
    lse = np.full((1, 1, queries), np.log(keys) + 0.5, np.float32)
    delta = np.random.default_rng(4).standard_normal((1, 1, queries)).astype(np.float32)
    given = {"q": q, "k": k, "v": v, "do": do, "lse": lse, "delta": delta, "scale": 0.125}
    found: dict[bool, set[bytes]] = {True: set(), False: set()}
    for in_turn, sums in found.items():
        request = GradientsSpec(heads=1, kv_heads=1, head_dim=64, mask=mask, in_turn=in_turn)
        kernel = am.load(compile_request(request, target="sm_90a"))
        for seed in SEEDS:
            made = {"dk": np.empty_like(k), "dv": np.empty_like(v)}
            accum = np.zeros(q.shape, np.float32)
            turns = {"turns": np.zeros((1, 1, -(-queries // 64)), np.int32)} if in_turn else {}
            device = replace(_device(seed), resident=4)
            kernel.launch({**given, **made, "dq_accum": accum, **turns}, device=device)
            sums.add(accum.tobytes())
            assert not any(cells.any() for cells in turns.values())
    assert len(found[True]) == 1 < len(found[False])
