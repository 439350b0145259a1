"""The cycle counter, and numbers that one thread of a group leaves in memory."""

from __future__ import annotations

import numpy as np
import pytest

from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.ws.checks import refused
from attn_mlir.validation.ws.kernels import compiled, kernel, role

STORE = '"ws.store_entry"(%{value}, %times, %g, {place}) {{operandSegmentSizes = array<i32: 1, 1, 2>}} : (i32, memref<2x3xi32>, i32, i32) -> ()'


def timed(lanes: int, io_role: str = "out") -> str:
    """times[group] = the counter before and after a barrier, and 7."""
    barrier = '"ws.barrier"() : () -> ()' if lanes > 1 else ""
    body = f"""%c7 = arith.constant 7 : i32
    %cc2 = arith.constant 2 : i32
    %begin = "ws.clock"() : () -> i32
    {barrier}
    %end = "ws.clock"() : () -> i32
    {STORE.format(value="begin", place="%c0")}
    {STORE.format(value="end", place="%c1")}
    {STORE.format(value="c7", place="%cc2")}"""
    groups = 2 if lanes > 1 else 1
    return kernel(
        [("times", io_role, "memref<2x3xi32>", ("", ""))],
        role(
            "look", body, first=0, warps=4 * groups if lanes > 1 else 1, lanes=lanes, groups=groups
        ),
    )


@pytest.mark.parametrize("lanes", [32, 1])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_times_grow(lanes: int, target: str) -> None:
    times = np.full((2, 3), -1, np.int32)
    found = compiled(timed(lanes), target=target)
    found(times, device=EmulatorDevice(check="all"))
    written = times[: 2 if lanes > 1 else 1]
    assert (written[:, 2] == 7).all() and (written[:, 0] >= 0).all()
    assert (written[:, 1] >= written[:, 0]).all()
    assert lanes > 1 or (times[1] == -1).all()
    assert found.bundle.ptx.count("%clock;") == 2


def test_inputs_are_not_written() -> None:
    refused(timed(32, "in"), "expects an argument of role out or inout, times is of role in")
