"""Replaying a loop of machine code: units that warps share, products in a queue, waits for what is transposed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from attn_mlir.bench.replay import ARRIVAL, DRAIN, Part, Step, values_wait_of

SLOTS = 2
WAIT, ARRIVE = "SYNCS.PHASECHK.TRANS64.TRYWAIT", "SYNCS.ARRIVE.TRANS64.A1T0"
SETTLE = ("WARPGROUP.DEPBAR.LE", "gsb0, 0x0")


def step(opcode: str, operands: str = "", *, stall: int = 1, barrier: int = -1) -> Step:
    return Step(opcode, operands, stall, sets=7, reads=7, waits=0, barrier=barrier)


def clocks(attend: list[Step], groups: int, transpose: list[Step] | None = None) -> float:
    loop: Any = SimpleNamespace(attend=attend, transpose=transpose or [])
    return Part(loop, groups, begin=0, values_wait=0, slots=SLOTS).clocks()


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_groups_share_a_unit(groups: int) -> None:
    assert clocks([step("MUFU.EX2")] * 10, groups) == 10 * 8 * groups


def test_a_product_is_waited_for() -> None:
    """One group waits for all of its product; two have the tensor core in turn."""
    product = step("QGMMA.64x128x32.F32.E4M3.E4M3", "R24, gdesc[UR8], RZ, !UPT, gsb0")
    turn = [product, step(*SETTLE)]
    assert clocks(turn, 1) == pytest.approx(64 + DRAIN, abs=2)
    assert clocks(turn, 2) == pytest.approx(2 * 64, abs=2)


def test_a_group_waits_for_the_transpose() -> None:
    """A slow warp that transposes sets the pace, and a fast one waits for slots that come back."""
    attend = [step(WAIT, barrier=0), step("NOP", stall=100), step(ARRIVE, barrier=1)]
    turning = [step(WAIT, barrier=0), step(WAIT, barrier=1), step(ARRIVE, barrier=1)]
    slow = [*turning[:2], step("NOP", stall=500), *turning[2:]]
    assert clocks(attend, 1, slow) == pytest.approx(500, abs=12)
    assert clocks(attend, 1, turning) == pytest.approx(100, abs=ARRIVAL)


def test_which_wait_is_for_values() -> None:
    scores = step("QGMMA.64x64x32", "R24, gdesc[UR8], RZ, !UPT, gsb0")
    values = step("QGMMA.64x64x32", "R88, R132, gdesc[UR8], RZ, !UPT")
    wait = step(WAIT)
    for turn, number in (([wait, scores, wait, values], 1), ([wait, values, wait, scores], 0)):
        loop: Any = SimpleNamespace(attend=turn, transpose=[])
        assert values_wait_of(loop) == number
