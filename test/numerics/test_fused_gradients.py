"""All gradients by one kernel, which adds those of queries to memory, beside the kernels for each."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
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


def _operands(sizes: tuple[int, int], seed: int) -> list[Any]:
    """q, k, v and the gradient of O: two sequences of 70 queries and 90 keys."""
    random = np.random.default_rng(seed)
    shapes = (70, 4, sizes[0]), (90, 2, sizes[0]), (90, 2, sizes[1]), (70, 4, sizes[1])
    return [random.standard_normal((2, *x)).astype(ml_dtypes.bfloat16) for x in shapes]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.long(
    "columns past the head-1",
    "V is wider-1",
    "V is wider-None",
    "*-2",
    "some queries see no key-1",
    "a group of its own multiplies-None",
)
def test_the_gradients_of_separate_kernels(name: str, seed: int | None) -> None:
    """dk and dv bit by bit; dq has the same products in f32, added in another order."""
    sizes, given = CASES[name]
    lengths = {x: np.array(y, np.int32) for x, y in given.items() if x != "mask"}
    q, k, v, do = _operands(sizes, 0)
    mode = {"check": "all", "target": "sm_90a"}
    device = EmulatorDevice(**mode) if seed is None else EmulatorDevice("adversarial", seed, **mode)
    call = {"mask": given["mask"], **lengths, "device": device}
    o, lse = am.attention(q, k, v, **call, return_lse=True)
    same = am.attention_backward(q, k, v, o, lse, do, **call)
    free = am.attention_backward(q, k, v, o, lse, do, **call, deterministic=False)
    rows = [lengths[x] if lengths else [n, n] for x, n in (("seqused_q", 70), ("seqused_k", 90))]
    for axis, (got, right) in enumerate(zip(free[:3], same[:3], strict=True)):
        for sequence, count in enumerate(rows[axis > 0]):
            found, wanted = (x[sequence, :count].astype(np.float64) for x in (got, right))
            if axis:
                np.testing.assert_array_equal(found, wanted)
            elif count:  # a rounding to bf16 of sums that differ in their last bits
                assert (np.abs(found - wanted) <= 2.0**-7 * np.abs(wanted) + 1e-5).all()
