"""What is asked of the L2 cache ahead: whole units of memory, in front of the wait for other kernels."""

from __future__ import annotations

import numpy as np
import pytest

from attn_mlir.runtime.emulator.machine import bulk
from attn_mlir.validation.ws.checks import refused
from attn_mlir.validation.ws.kernels import copy_op, kernel, role, run

UNIT, PAGE = 16, 4096  # bytes; the emulator keeps where an address is in its page
ASK = """%columns = "ws.extent"(%x) {dim = 1 : i64} : (memref<?x?xi32>) -> i32
    "ws.prefetch_line"(%x, %c1, %c0, %columns) {operandSegmentSizes = array<i32: 1, 2, 1>}
      : (memref<?x?xi32>, i32, i32, i32) -> ()
    "ws.grid_dependency_wait"() : () -> ()"""


def asking(lanes: int = 1) -> str:
    """One role asks for a row of x before it waits for earlier kernels, another copies the row to y."""
    line = "!ws.frag<vector<32xi32>>"
    move = f""""ws.grid_dependency_wait"() : () -> ()
    %f = "ws.load_global"(%x, %c1, %c0) {{dims = array<i32: 1>, operandSegmentSizes = array<i32: 1, 2>}}
      : (memref<?x?xi32>, i32, i32) -> {line}
    {copy_op("store_global", "%f", "%y", "%c0", "0", f"{line}, memref<?xi32>")}"""
    arguments = [
        ("x", "in", "memref<?x?xi32>", ("m", "n")),
        ("y", "out", "memref<?xi32>", ("n",)),
    ]
    roles = role("ask", ASK, first=0, lanes=lanes), role("move", move, first=1, lanes=32)
    return kernel(arguments, "".join(roles))


@pytest.mark.parametrize(("first", "columns"), [(0, 4), (1, 1), (1, 3), (1, 4), (3, 30)])
def test_units_that_hold_the_elements(
    first: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def note(size: int, at: int) -> None:
        asked.append((at, size))

    monkeypatch.setattr(bulk, "check_units", note)
    x = np.arange(99, dtype=np.int32).reshape(3, 33)[:, first : first + columns]
    y = np.zeros(columns, np.int32)
    run(asking(), x, y, target="sm_90a")
    assert (y == x[1]).all()
    begin = x[1].ctypes.data
    end = begin + 4 * columns
    ((at, size),) = asked
    assert at % PAGE == begin // UNIT * UNIT % PAGE
    assert size == -(-end // UNIT) * UNIT - begin // UNIT * UNIT


def test_one_thread_asks() -> None:
    refused(asking(32), "expects a role with one lane, got 32 in ask")
