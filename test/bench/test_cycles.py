"""Cycles that a kernel counts: what is recorded, and what the bench makes of it."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.bench.attention import Cell
from attn_mlir.bench.cycles import Cycles, Entry, row
from attn_mlir.lowering.compile import compile_with_clocks
from attn_mlir.runtime.devices.emulator import EmulatorDevice

SPEC = am.mha(heads=1, head_dim=32, mask=am.causal(), schedule="mha-registers", query_tiles=2)
KEYS = 128  # of a tile


def test_a_kernel_tells_its_turns() -> None:
    """Readings in order, the turns that the mask asks for, and the same results."""
    kernel = am.load(compile_with_clocks(SPEC, target="sm_90a"))
    plain = am.compile(SPEC, target="sm_90a")
    assert "%clock" in kernel.bundle.ptx and "%clock" not in plain.ptx
    q = np.random.default_rng(0).standard_normal((1, 200, 1, 32)).astype(ml_dtypes.bfloat16)
    o, lse = np.zeros_like(q), np.zeros((1, 1, 200), np.float32)
    clocks = np.full((2, 1, 1, 2, 9), -1, np.int32)
    kernel(q, q, q, o, lse, clocks, device=EmulatorDevice(check="all"))
    assert am.reference.check_attention(q, q, q, o, lse, mask=am.causal()).ok
    begin, operands, loops, tested, _, steady, _, asked, done = np.moveaxis(clocks, -1, 0)
    for first, second in zip(
        (begin, operands, loops, tested, steady, asked),
        (operands, loops, tested, steady, asked, done),
        strict=True,
    ):
        assert (second >= first).all() and (first >= 0).all()
    for block in range(2):
        last = min(128 * block + 127, 199)  # query of the work tile; the first tile is no turn
        assert (clocks[block, ..., 4] + clocks[block, ..., 6] == last // KEYS).all()


def test_turns_and_what_is_around_them() -> None:
    """A counter that wraps; groups without a turn of a kind do not count there."""
    one = [-30, 0, 40, 100, 3, 1100, 10, 1150, 1200]
    other = [0, 10, 30, 30, 0, 1330, 10, 1350, 1360]
    clocks = np.array([[one], [other]], np.int32)
    cycles = Cycles.of(clocks)
    assert (cycles.steady, cycles.tested) == (115.0, 20.0)
    assert (cycles.operands, cycles.first) == (20.0, 30.0)
    assert (cycles.values, cycles.output) == (35.0, 30.0)
    assert cycles.rest == pytest.approx(1 - (60 + 1000 + 1300) / (1230 + 1360))
    none = Cycles.of(np.array([[[0, 1, 2, 2, 0, 2, 0, 3, 4]]], np.int32))
    assert none.steady is None and none.tested is None and none.rest == 1


def test_a_row_says_what_the_loop_could_do() -> None:
    """Of 192 x 80 at head size 128: 1920 cycles of products, and 1923 of the bare loop."""
    entry = Entry(Cell(128, 128, "full", 4096), "", 3, 80, "counter")
    cycles = Cycles(2000.0, None, 1.0, 2.0, 3.0, 4.0, 0.125)
    flops = entry.cell.flops
    assert row(entry, cycles, flops * 1e-12 / 700) == (
        "| D=128 4096 | 192x80, counter | 2000 | 96.0% | 1.040 |  | 1 | 2 | 3 | 4 | 12.5% | 700 |"
    ).replace("D=128 4096", "D=128 full 4096")
    other = dataclasses.replace(entry, groups=2)
    assert row(other, cycles, None).split("|")[4:6] == [" 64.0% ", "  "]
