"""`ws.entry` and `ws.bits`, executed: a table that one role reads ahead, for the regions of others."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.dialect._mlir import ir
from attn_mlir.lowering.compile import compile_kernel
from attn_mlir.passes.schedule.parts import builder as b
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import load

COUNT, COLUMNS = 64, 64


def gathered() -> Any:
    """y[i] = x[table[i]] and bits of the entries that are rows, 64 entries at a time."""

    def build() -> None:
        dynamic = ir.ShapedType.get_dynamic_size()
        bf16, i32 = ir.BF16Type.get(), b.i32()
        rows, line = (
            ir.MemRefType.get([dynamic, COLUMNS], bf16),
            ir.MemRefType.get([dynamic], i32),
        )
        arguments = [
            b.Argument("x", "in", rows, ("m", "")),
            b.Argument("table", "in", line, ("n",)),
            b.Argument("y", "out", rows, ("n", "")),
            b.Argument("words", "out", line, ("w",)),
        ]
        kernel = b.declare_kernel("k", arguments)
        with ir.InsertionPoint(kernel.body.blocks[0]):
            x, table, y, words = kernel.body.blocks[0].arguments
            entries = b.Ring("entries", b.tile([COUNT], i32, "shared"), stages=2)
            tiles = b.Ring("tiles", b.tile([COUNT, COLUMNS], bf16, "shared"))
            with b.role("find", first=0, warps=2):
                with b.turns(b.INT.floordiv(b.extent(table, 0), COUNT)) as turn:
                    found = b.load_global(table, [COUNT], [b.INT.mul(turn, COUNT)], [0])
                    is_row = b.map_elements(lambda e: b.compare("sge", e, 0), found, element=b.i1())
                    b.store_global(b.bits(is_row), words, [b.INT.mul(turn, 2)], [0])
                    slot = entries.acquire()
                    b.store(found, slot)
                    b.commit(slot, "threads")
            with b.role("load", first=2, warps=1, lanes=1):
                with b.turns(b.INT.floordiv(b.extent(table, 0), COUNT)):
                    slot, tile = entries.wait(), tiles.acquire()
                    b.gather_in(x, tile, [0, 0], lambda row: b.entry(slot, row))
                    b.commit(tile, "copy_engine")
                    b.release(slot, "threads")
            with b.role("leave", first=3, warps=1, lanes=1):
                with b.turns(b.INT.floordiv(b.extent(table, 0), COUNT)) as turn:
                    tile = tiles.wait()
                    b.copy_out(tile, y, [b.INT.mul(turn, COUNT), 0], [0, 1])
                    b.release(tile, "copy_engine")

    return load(compile_kernel("k", build, target="sm_100a"))


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
