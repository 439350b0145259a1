"""Kernels that gather rows of a table: one role reads the table ahead, one gathers, one copies out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attn_mlir.dialect._mlir import ir
from attn_mlir.lowering.compile import compile_kernel
from attn_mlir.schedules import emit as b


def rows_of_a_table(
    count: int,
    columns: int,
    load: Callable[[b.Value, b.Ring, b.Ring], None],
    *,
    begin: Callable[[b.Value], None] | None = None,
    note: Callable[[b.Value, b.Value, b.Value], None] | None = None,
    warps: int = 1,
    stages: int = 2,
) -> bytes:
    """The bundle of y[i] = x[table[i]] for sm_100a, some entries at a time.

    Args:
      count: entries at a time. columns: of x, of bf16.
      load: what the role `load` does in each turn with x, the ring of entries and the ring of tiles.
      begin: what it does before with a further output of i32.
      note: what the role `find` does with that output, the entries it has found, and the number of its turn.
      warps: of that role. stages: of the ring of tiles.
    """

    def build() -> None:
        dynamic = ir.ShapedType.get_dynamic_size()
        bf16, i32 = ir.BF16Type.get(), b.i32()
        rows = ir.MemRefType.get([dynamic, columns], bf16)
        line = ir.MemRefType.get([dynamic], i32)
        arguments = [
            b.Argument("x", "in", rows, ("m", "")),
            b.Argument("table", "in", line, ("n",)),
            b.Argument("y", "out", rows, ("n", "")),
        ]
        if note is not None or begin is not None:
            arguments.append(b.Argument("noted", "out", line, ("w",)))
        kernel = b.declare_kernel("k", arguments)
        with ir.InsertionPoint(kernel.body.blocks[0]):
            x, table, y, *noted = kernel.body.blocks[0].arguments
            entries = b.Ring("entries", b.tile([count], i32, "shared"), stages=2)
            tiles = b.Ring("tiles", b.tile([count, columns], bf16, "shared"), stages=stages)

            def turns() -> Any:
                return b.iterations(b.INT.floordiv(b.extent(table, 0), count))

            with b.role("find", first=0, warps=warps), turns() as turn:
                found = b.load_global(table, [count], [b.INT.mul(turn, count)], [0])
                if note is not None:
                    note(noted[0], found, turn)
                slot = entries.acquire()
                b.store(found, slot)
                b.commit(slot, "threads")
            with b.role("load", first=warps, warps=1, lanes=1):
                if begin is not None:
                    begin(noted[0])
                with turns():
                    load(x, entries, tiles)
            with b.role("leave", first=warps + 1, warps=1, lanes=1), turns() as turn:
                tile = tiles.wait()
                b.copy_out(tile, y, [b.INT.mul(turn, count), 0], [0, 1])
                b.release(tile, "copy_engine")

    return compile_kernel("k", build, target="sm_100a")
