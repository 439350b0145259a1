"""Several rings in the slots of one, executed; and what is refused where a step of their order is left out.

The emulator is a second judge of what is refused: such kernels have races on it, or other numbers.
"""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.errors import AttnError, VerifyError
from attn_mlir.lowering.rings import rings
from attn_mlir.passes import plan_memory
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.validation.ws import clusters, places

BF16 = ml_dtypes.bfloat16
TARGETS = {"staged": "sm_90a", "columns": "sm_100a"}
SEEDS = [None, 1, 2]


def compiled(name: str, ctas: int, without: str = "") -> Kernel:
    build = functools.partial(getattr(places, name), ctas, without=without)
    return clusters.compiled(build, TARGETS[name])


proved = functools.cache(compiled)


def drawn(*shape: int) -> Any:
    """Small integers, whose products and sums are exact, also in 16 bits."""
    return np.random.default_rng(len(shape)).integers(-1, 2, shape).astype(BF16)


def call(name: str, kernel: Kernel, ctas: int, seed: int | None) -> bool:
    """Whether a kernel computes what it should: more tiles than slots, and a ragged end."""
    if name == "staged":
        x, w = drawn(5 * places.ROWS + 9, places.WIDTH), drawn(ctas, places.PART, places.PART)
        inputs, thirds = (x, w), np.split(x.astype(np.float32), 3, axis=1)
        exact = (2 * thirds[0] + thirds[1] + thirds[2]) @ w.astype(np.float32)
    else:
        x = drawn(3 * ctas * places.LANES - 37, places.HALF)
        inputs = x, drawn(places.COLUMNS, places.HALF), drawn(places.HALF, places.HALF)
        x, k, v = (each.astype(np.float32) for each in inputs)
        left, right = np.split(x @ k.T, 2, axis=1)
        exact = (left + 2 * right) @ v
    y = np.full(exact.shape, np.nan, np.float32)
    device = EmulatorDevice() if seed is None else EmulatorDevice("adversarial", seed)
    kernel(*inputs, y, device=device)
    return bool((y == exact).all())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize("name", TARGETS)
def test_three_rings_in_the_slots_of_one(name: str, ctas: int, seed: int | None) -> None:
    """Two beside one another at offsets, the third over them; alone, and in a cluster or pair."""
    assert call(name, proved(name, ctas), ctas, seed)


@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize("name", TARGETS)
def test_they_have_no_barriers_for_empty_slots(name: str, ctas: int) -> None:
    found: Any = proved(name, ctas).bundle.report["barriers"]
    inner = {"staged": ("lo", "hi", "out"), "columns": ("s", "p", "q", "r")}[name]
    sides = {run["name"] for run in found if run["name"].split()[0] in inner}
    assert sides == {f"{ring} full" for ring in inner}


OVER = (
    r"in role {} takes turn {} of ring {}\[0\] in the place of turn {} of ring {}\[0\], which role "
    r"{} may still {}: a wait for what follows that (commit|release) is missing before this acquire"
)
WITHOUT = {
    ("staged", "read"): OVER.format("split.*", 0, "lo", 0, "x", "split.*", "read"),
    ("staged", "multiplied"): OVER.format("multiply.*", 0, "out", 0, "lo", "multiply.*", "read"),
    ("staged", "left"): OVER.format("load.*", 2, "x", 0, "lo", "split.*", "fill"),
    ("columns", "scores"): OVER.format("weigh.*", 0, "p", 0, "s", "weigh.*", "read"),
    ("columns", "issued"): OVER.format("multiply.*", 0, "r", 0, "p", "multiply.*", "read"),
    ("columns", "read"): OVER.format("multiply.*", 1, "s", 0, "r", "weigh.*", "read"),
}
IN_CLUSTERS = {
    ("staged", "everywhere"): OVER.format(
        "load of CTA 0", 2, "x", 0, "lo", "split of CTA 1", "fill"
    ),
    (
        "columns",
        "everywhere",
    ): r"releases a slot of ring read\[0\] in CTA 1 that role weigh of CTA 1 "
    "may not have acquired: no signal says so",
}
MUTANTS = [
    *((ctas, *names, message) for names, message in WITHOUT.items() for ctas in (1, 2)),
    *((2, *names, message) for names, message in IN_CLUSTERS.items()),
]


@pytest.mark.parametrize(("ctas", "name", "without", "message"), MUTANTS)
def test_a_step_that_is_left_out_is_missed(
    ctas: int, name: str, without: str, message: str
) -> None:
    with pytest.raises(VerifyError, match=message):
        compiled(name, ctas, without)


@pytest.mark.parametrize(
    ("ctas", "name", "without"),
    [
        (ctas, name, without)
        for ctas, name, without, _ in MUTANTS
        if without != "multiplied"  # the emulator computes a warpgroup's product at once
    ],
)
def test_the_emulator_sees_what_the_proof_refuses(
    ctas: int, name: str, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_memory, "prove", lambda kernel: [])
    kernel = compiled(name, ctas, without)
    is_right = False
    try:
        is_right = call(name, kernel, ctas, seed=1)
    except AttnError as error:
        assert "nothing orders these accesses" in str(error) or "never written" in str(error)
    assert not is_right


def in_turns(target: str, seed: int | None) -> bool:
    x = drawn(300, places.PART)
    y = np.full_like(x, np.nan)
    device = EmulatorDevice() if seed is None else EmulatorDevice("adversarial", seed)
    clusters.compiled(places.in_turns, target)(x, y, device=device)
    return bool((y == x + 1).all())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("target", TARGETS.values())
def test_threads_and_the_copy_engine_fill_the_same_bytes(target: str, seed: int | None) -> None:
    assert in_turns(target, seed)


@pytest.mark.parametrize("target", TARGETS.values())
def test_a_fence_is_between_what_threads_and_an_engine_access(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring that threads fill and read has no engine of its own."""
    monkeypatch.setattr(rings, "overlapping", lambda op: [])
    with pytest.raises(AttnError, match="fence.proxy.async is missing"):
        in_turns(target, None)
