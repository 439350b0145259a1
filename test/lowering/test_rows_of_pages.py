"""`ws.copy_rows` along two dimensions, whose tile has columns that the tensor lacks, executed and refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attn_mlir.dialect._mlir import ir
from attn_mlir.lowering.compile import compile_kernel
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.schedules import emit as b
from attn_mlir.validation.ws.checks import refused
from attn_mlir.validation.ws.clusters import built

COUNT, TURNS, PAGES, HEADS = 32, 3, 7, 2  # rows of a tile, tiles, and pages of a pool
FIRST_PAGE, OFFSET, HEAD = 1, 2, 1  # the coordinates to which rows are added


def build(page: int, columns: int, width: int, agent: str = "thread_copies") -> None:
    """y[i] = rows[table[i]] of a pool [pages, page, heads, columns], in tiles of `width` columns."""
    dynamic, f16 = ir.ShapedType.get_dynamic_size(), ir.F16Type.get()
    pool_kind = ir.MemRefType.get([dynamic, page, HEADS, columns], f16)
    arguments = [
        b.Argument("pool", "in", pool_kind, ("pages", "", "", "")),
        b.Argument("table", "in", ir.MemRefType.get([dynamic], b.i32()), ("n",)),
        b.Argument("y", "out", ir.MemRefType.get([dynamic, width], f16), ("my", "")),
    ]
    kernel = b.declare_kernel("k", arguments)
    with ir.InsertionPoint(kernel.body.blocks[0]):
        pool, table, y = kernel.body.blocks[0].arguments
        tiles = b.Ring("tiles", b.tile([COUNT, width], f16, "shared"), stages=2)
        turns = b.INT.floordiv(b.extent(table, 0), COUNT)
        with b.role("copy", first=0, warps=2), b.iterations(turns) as turn:
            slot = tiles.acquire()
            found = b.load_global(table, [COUNT], [b.INT.mul(turn, COUNT)], [0])
            begin: list[Any] = [FIRST_PAGE, OFFSET, HEAD, 0]
            b.copy_rows(pool, slot, begin, [0, 1, 3], lambda _, row: row, found)
            b.commit(slot, agent)
        with b.role("leave", first=2, warps=1, lanes=1), b.iterations(turns) as turn:
            slot = tiles.wait()
            b.copy_out(slot, y, [b.INT.mul(turn, COUNT), 0], [0, 1])
            b.release(slot, "copy_engine")


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    ("page", "columns", "width"),
    [
        (1, 64, 64),
        (3, 40, 64),  # pages that tiles do not consist of, and three units of zeros
        (5, 72, 128),  # a second line, most of which is zeros
        (16, 128, 128),  # two whole lines
    ],
)
def test_rows_of_pages(page: int, columns: int, width: int, seed: int | None) -> None:
    """Row r is row r % page of page r / page, from a start inside a page on; there are none outside."""
    made = Bundle.from_bytes(
        compile_kernel("k", lambda: build(page, columns, width), target="sm_90a")
    )
    numbers = np.random.default_rng(6)
    pool = numbers.standard_normal((PAGES, page, HEADS, columns)).astype(np.float16)
    start = FIRST_PAGE * page + OFFSET
    table = numbers.integers(-start - 3, PAGES * page - start + 3, TURNS * COUNT).astype(np.int32)
    edges = -start - 1, -start, PAGES * page - start - 1, PAGES * page - start
    table[: len(edges)] = edges
    y = np.full((len(table), width), np.nan, np.float16)
    device = EmulatorDevice(check="all") if seed is None else EmulatorDevice("adversarial", seed)
    Kernel(made)(pool, table, y, device=device)
    rows, places = pool[:, :, HEAD].reshape(-1, columns), table + start
    exists = (places >= 0) & (places < len(rows))
    assert exists[: len(edges)].tolist() == [False, True, True, False]
    found = np.where(exists[:, None], rows[places.clip(0, len(rows) - 1)], 0)
    assert np.array_equal(y[:, :columns], found) and (y[:, columns:] == 0).all()


def test_what_has_no_code() -> None:
    """Threads that wait for copies have rows along one dimension, whose columns are all there."""
    text = str(built(lambda: build(4, 64, 64, "warps")))
    refused(text, r"expects 2 dims where threads wait for copies, got \[0, 1, 3\]")
