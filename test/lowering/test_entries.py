"""`ws.entry` and `ws.bits`, executed: a table that one role reads ahead, for the regions of others."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.dialect._mlir import ir
from attn_mlir.lowering.compile import compile_kernel
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import load
from attn_mlir.schedules import emit as b
from attn_mlir.validation.ws.gathers import rows_of_a_table

COUNT, COLUMNS = 64, 64


def gathered() -> Any:
    """y[i] = x[table[i]] and bits of the entries that are rows, 64 entries at a time."""

    def rows_there(words: b.Value, found: b.Value, turn: b.Value) -> None:
        is_row = b.map_elements(lambda e: b.compare("sge", e, 0), found, element=b.i1())
        b.store_global(b.bits(is_row), words, [b.INT.mul(turn, 2)], [0])

    def gather(x: b.Value, entries: b.Ring, tiles: b.Ring) -> None:
        slot, tile = entries.wait(), tiles.acquire()
        b.gather_in(x, tile, [0, 0], lambda row: b.entry(slot, row))
        b.commit(tile, "copy_engine")
        b.release(slot, "threads")

    return load(rows_of_a_table(COUNT, COLUMNS, gather, note=rows_there, warps=2, stages=1))


def test_rows_of_a_table_that_was_read_ahead() -> None:
    numbers = np.random.default_rng(3)
    x = numbers.standard_normal((50, COLUMNS)).astype(ml_dtypes.bfloat16)
    table = numbers.integers(-30, 50, 4 * COUNT).astype(np.int32)
    kernel = gathered()
    for schedule in ("fair", "adversarial"):
        y = np.full((len(table), COLUMNS), np.nan, ml_dtypes.bfloat16)
        words = np.full(len(table) // 32, -1, np.int32)
        kernel(x, table, y, words, device=EmulatorDevice(schedule, seed=2, check="all"))
        assert np.array_equal(y, np.where(table[:, None] >= 0, x[table.clip(0)], 0))
        truth = np.packbits(table >= 0, bitorder="little").view(np.int32)
        assert np.array_equal(words, truth)


@pytest.mark.parametrize("count", [32, 96])
def test_bits_want_a_row_per_thread(count: int) -> None:
    from attn_mlir.errors import VerifyError

    def build() -> None:
        out = b.Argument("y", "out", ir.MemRefType.get([count // 32], b.i32()), ("",))
        kernel = b.declare_kernel("k", [out])
        with ir.InsertionPoint(kernel.body.blocks[0]):
            (y,) = kernel.body.blocks[0].arguments
            with b.role("find", first=0, warps=2):
                rows = b.generate(lambda i: b.compare("sge", i, 5), [count], b.i1())
                b.store_global(b.bits(rows), y, [0], [0])

    with pytest.raises(VerifyError, match="expects rows in multiples of 64 of one row per thread"):
        compile_kernel("k", build, target="sm_100a")
