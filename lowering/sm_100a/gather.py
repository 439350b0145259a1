"""Gather copies: one copy takes four rows from any four places of a tensor, `tile::gather4`.

A box of the tensor map is one 128-byte line of one row; a copy brings four of them as a box of four
rows, swizzled by its address like the box of a whole tile. One thread issues all copies of a tile,
in a loop over groups of four rows, and for each group line by line.
"""

from dataclasses import replace
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, nvvm
from attn_mlir.dialect.scalars import INT, loop

from ..clusters import as_cluster, counted_at, in_role, receivers
from ..context import Lowering, lowers
from ..copies import box_offset
from ..layouts import SWIZZLE_BYTES
from ..rings import announce

Value = Any

GATHERED = 4  # rows of one copy; PTX ISA, cp.async.bulk.tensor, tile::gather4


@lowers(ws.GatherInOp)
def _gather_in(low: Lowering, op: ws.GatherInOp) -> None:
    slot = low.slot(op.target)
    parameter = low.signature.gather_map(op)
    announce(low, slot, op)
    tile, own = low.tile(op.target), in_role(low, receivers(op))
    barrier, options = counted_at(low, slot.ring.full.address(slot.index), own, slot.ring.full_at)
    mode = ir.Attribute.parse("#nvvm.tma_load_mode<tile_gather4>")
    first, column = low[op.coords[0]], low[op.coords[1]]

    def group(number: Value) -> list[Value]:
        rows = [
            INT.add(first, _chosen(low, op, INT.add(INT.mul(number, GATHERED), i)))
            for i in range(GATHERED)
        ]
        below = INT.add(tile.address, INT.mul(number, GATHERED * SWIZZLE_BYTES))
        part = replace(tile, address=below, pitch_rows=tile.pitch)
        for line in range(parameter.box_count):
            place = low.shared_pointer(box_offset(part, parameter, line))
            at = INT.add(column, line * parameter.line) if line else column
            nvvm.CpAsyncBulkTensorGlobalToSharedClusterOp(
                as_cluster(place),
                low.arguments[parameter],
                [at, *rows],
                barrier,
                [],
                mode=mode,
                **options,
            )
        return []

    loop(0, tile.kind.shape[0] // GATHERED, [], group)


def _chosen(low: Lowering, op: ws.GatherInOp, row: Value) -> Value:
    """The tensor's row that the region chooses for a row of the tile."""
    block = op.body.blocks[0]
    low[block.arguments[0]] = row
    *body, last = block.operations
    low.lower_block(body)
    return low[last.value]
