"""Loops of roles that gather, in rounds of turns whose slots are known: executed, and which go in rounds."""

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

HEAD, COUNT, COLUMNS = (
    8,
    16,
    64,
)  # of a list: numbers in front of the rows; a copy takes four of these
COPIES = 4  # of a tile
SKIPPED = 5  # the number of a tile that nothing fills


def gathered(lists: int, tiles: int, *, twice: bool = False, carried: bool = False) -> bytes:
    """y[i] = x[table[i]], by tiles of 16 entries; one of them is left as it is.

    Args:
      lists, tiles: stages of the rings.
      twice: every turn fills two tiles, the second with the same rows.
      carried: the loop that gathers also counts.
    """

    def build() -> None:
        dynamic = ir.ShapedType.get_dynamic_size()
        bf16, i32 = ir.BF16Type.get(), b.i32()
        rows = ir.MemRefType.get([dynamic, COLUMNS], bf16)
        arguments = [
            b.Argument("x", "in", rows, ("m", "")),
            b.Argument("table", "in", ir.MemRefType.get([dynamic], i32), ("n",)),
            b.Argument("y", "out", rows, ("n", "")),
        ]
        kernel = b.declare_kernel("k", arguments)
        with ir.InsertionPoint(kernel.body.blocks[0]):
            x, table, y = kernel.body.blocks[0].arguments
            found = b.Ring("found", b.tile([HEAD + COUNT], i32, "shared"), stages=lists)
            filled = b.Ring("filled", b.tile([COUNT, COLUMNS], bf16, "shared"), stages=tiles)

            def turns() -> Any:
                return b.INT.floordiv(b.extent(table, 0), COUNT)

            with b.role("find", first=0, warps=1), b.iterations(turns()) as turn:
                entries = b.load_global(table, [COUNT], [b.INT.mul(turn, COUNT)], [0])
                slot = found.acquire()
                b.store(b.fill([HEAD], turn), b.rows(slot, 0, HEAD))
                b.store(entries, b.rows(slot, HEAD, COUNT))
                b.commit(slot, "threads")

            def block(turn: Any, *state: Any) -> list[Any]:
                slot = found.wait()
                number, entries = b.entry(slot, b.constant(0)), b.rows(slot, HEAD, COUNT)
                is_there = b.compare("ne", number, SKIPPED)
                for _ in range(1 + twice):
                    tile = filled.acquire()
                    with b.when(is_there):
                        b.gather_in(x, tile, [0, 0], lambda row: b.entry(entries, row))
                    b.commit(tile, "copy_engine")
                b.release(slot, "threads")
                return [b.INT.add(count, turn) for count in state]

            with b.role("load", first=1, warps=1, lanes=1):
                b.loop(0, turns(), [b.constant(0)] * carried, block)
            with b.role("leave", first=2, warps=1, lanes=1), b.iterations(turns()) as turn:
                for tile in [filled.wait() for _ in range(1 + twice)]:
                    b.copy_out(tile, y, [b.INT.mul(turn, COUNT), 0], [0, 1])
                    b.release(tile, "copy_engine")

    return compile_kernel("k", build, target="sm_100a")


@pytest.mark.parametrize(
    ("lists", "tiles", "twice"),
    [(4, 2, False), (2, 4, False), (2, 1, False), (3, 2, False), (2, 4, True), (4, 2, True)],
)
def test_any_number_of_turns(lists: int, tiles: int, twice: bool) -> None:
    """The last round ends after any of its turns, and phases are those of all rounds before."""
    made, numbers = load(gathered(lists, tiles, twice=twice)), np.random.default_rng(tiles)
    x = numbers.standard_normal((50, COLUMNS)).astype(ml_dtypes.bfloat16)
    for turns in (1, 2, 3, 4, 7, 10):
        table = numbers.integers(-1, 50, turns * COUNT).astype(np.int32)
        y = np.full((len(table), COLUMNS), np.nan, ml_dtypes.bfloat16)
        made(x, table, y, device=EmulatorDevice("adversarial", turns, check="all"))
        truth = np.where(table[:, None] >= 0, x[table.clip(0)], 0).reshape(turns, COUNT, COLUMNS)
        if turns > SKIPPED:
            truth[SKIPPED] = truth[SKIPPED - tiles // (1 + twice)]  # what its slots had before
        assert np.array_equal(y, truth.reshape(y.shape))


@pytest.mark.parametrize(
    ("options", "turns"),
    [
        ({"lists": 4, "tiles": 2}, 4),
        ({"lists": 2, "tiles": 1}, 2),
        ({"lists": 1, "tiles": 1}, 1),
        ({"lists": 3, "tiles": 2}, 2),
        ({"lists": 8, "tiles": 2}, 2),
        ({"lists": 3, "tiles": 3}, 1),
        ({"lists": 2, "tiles": 4, "twice": True}, 2),
        ({"lists": 1, "tiles": 5, "twice": True}, 1),
        ({"lists": 4, "tiles": 2, "carried": True}, 1),
    ],
)
def test_which_loops_go_in_rounds(options: dict[str, Any], turns: int) -> None:
    """Those that come to the same slots again of some ring after few turns, and hand nothing on."""
    copies = gathered(**options).count(b"tile::gather4")
    assert copies == turns * COPIES * (1 + options.get("twice", False))


def test_rows_are_read_once_where_one_branch_decides() -> None:
    """For copies into both tiles of a turn, each of which arrives with the bytes that it announces."""
    once, twice = (gathered(1, tiles, twice=tiles == 2) for tiles in (1, 2))
    assert twice.count(b"tile::gather4") == 2 * once.count(b"tile::gather4")
    assert twice.count(b"ld.shared") == once.count(b"ld.shared")
    found = [made.count(b"mbarrier.arrive.expect_tx") for made in (once, twice)]
    assert found == [0, 2]
