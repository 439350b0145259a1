"""A kernel that copies a matrix through shared memory with the copy engine alone.

`attn-mlir doctor` runs it to show that a machine works: tensor maps, a two-stage ring with
transaction barriers, copies in and out. It needs no tensor core, so it runs from Hopper on.
"""

from collections.abc import Callable

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.schedules import emit as b

TILE_ROWS = 64
COLUMNS = 128  # of bf16
TILES_PER_CTA = 5  # odd, and more than the ring has slots, so that barriers go through both phases


def schedule_tma_copy(name: str) -> ws.KernelOp:
    """Builds `name(src, dst)` for bf16 [rows, 128] at the insertion point."""
    dynamic = ir.ShapedType.get_dynamic_size()
    element = ir.BF16Type.get()
    matrix = ir.MemRefType.get([dynamic, COLUMNS], element)
    kernel = b.declare_kernel(
        name,
        [
            b.Argument("src", "in", matrix, ("rows", "")),
            b.Argument("dst", "out", matrix, ("rows", "")),
        ],
    )
    with ir.InsertionPoint(kernel.body.blocks[0]):
        src, dst = kernel.body.blocks[0].arguments
        ring = b.Ring("tile", b.tile([TILE_ROWS, COLUMNS], element, "shared"), stages=2)
        load = _each_tile(src, lambda row: _load(ring, src, row))
        store = _each_tile(src, lambda row: _store(ring, dst, row))
        b.emit_roles([b.Role("load", load, lanes=1), b.Role("store", store, lanes=1)])
    return kernel


def _each_tile(src: b.Value, body: Callable[[b.Value], None]) -> Callable[[b.Value], None]:
    """The body of a role: a loop over tiles, given the first row of each."""

    def run(_: b.Value) -> None:
        rows = b.extent(src, 0)
        stripe = TILE_ROWS * TILES_PER_CTA
        with b.tiles([b.INT.ceildiv(rows, stripe)], "single") as (number,):
            first = b.INT.mul(number, stripe)
            remaining = b.INT.min(b.INT.sub(rows, first), stripe)

            def iteration(index: b.Value) -> list[b.Value]:
                body(b.INT.add(first, b.INT.mul(index, TILE_ROWS)))
                return []

            b.loop(0, b.INT.ceildiv(remaining, TILE_ROWS), [], iteration)

    return run


def _load(ring: b.Ring, src: b.Value, row: b.Value) -> None:
    slot = ring.acquire()
    b.copy_in(src, slot, [row, 0], [0, 1])
    b.commit(slot, "copy_engine")


def _store(ring: b.Ring, dst: b.Value, row: b.Value) -> None:
    slot = ring.wait()
    b.copy_out(slot, dst, [row, 0], [0, 1])
    b.release(slot, "copy_engine")
