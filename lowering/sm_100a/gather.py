"""Gather copies: one copy takes four rows from any four places of a tensor, `tile::gather4`.

A box of the tensor map is one 128-byte line of one row; a copy brings four of them as a box of four
rows, swizzled by its address like the box of a whole tile. One thread issues all copies of a tile,
for some groups of four rows at a time line by line: the assembler keeps the box of each group in
uniform registers of its own, and a copy changes its place and its column. It does so only where the
slot's place is known before the block that copies (`Slot.start`).

While numbers of rows are on their way the assembler (ptxas 13.5) makes boxes of what copies follow,
in registers beside those of the group, where numbers are moved again. So the first line reads the
rows of each group in front of its copy, and what the barrier is told of the bytes comes behind that
line. Where one branch decides about copies into several slots (`branched_turns`), all lanes read
the rows of all groups behind it, and the boxes of all these copies have them in the same registers:
255 instead of 305 instructions of a turn of keys.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, nvvm
from attn_mlir.dialect.scalars import INT, compare, constant, loop, when

from ..access.inline_ptx import kept_apart
from ..copies.copies import box_offset
from ..layouts import SWIZZLE_BYTES, chunk_count
from ..rings.clusters import as_cluster, counted_at, in_role, number_in, receivers
from ..rings.followed import issuing
from ..rings.rings import announce
from ..state.lowering import Lowering, lowers

Value = Any

GATHERED = 4  # rows of one copy; PTX ISA, cp.async.bulk.tensor, tile::gather4
GROUPS = 4  # of rows at a time: 7 of 80 uniform registers each, and as many for boxes under way


@lowers(ws.GatherInOp)
def _gather_in(low: Lowering, op: ws.GatherInOp) -> None:
    turn, rows = low.active.turn, None
    if turn is not None and low.tile(op.target).kind.shape[0] <= GROUPS * GATHERED:
        rows = _rows_of_turn(low, op, turn.rows)
    with issuing(low):
        _gather(low, op, rows)


def _gather(low: Lowering, op: ws.GatherInOp, rows: list[Value] | None) -> None:
    """Issues all copies, of rows that are known or are read in front of them."""
    slot = low.slot(op.target)
    parameter = low.signature.gather_map(op)
    tile, own = low.tile(op.target), in_role(low, receivers(op))
    barrier, options = counted_at(low, slot.ring.full.address(slot.index), own, slot.ring.full_at)
    mode = ir.Attribute.parse("#nvvm.tma_load_mode<tile_gather4>")
    first = low[op.coords[0]]
    groups = tile.kind.shape[0] // GATHERED
    lines = chunk_count(tile.kind.shape[1], parameter.element_bits)
    together = math.gcd(groups, GROUPS) if rows is None else groups
    is_told_late = groups == together and lines > 1
    if not is_told_late:
        announce(low, slot, op)

    def rows_from(group: int, begin: Value) -> list[Value]:
        """The tensor's rows for those of a group."""
        places = range(group * GATHERED, (group + 1) * GATHERED)
        if rows is not None:
            return [INT.add(first, rows[place]) for place in places]
        chosen = (_chosen(low, op, INT.add(begin, i)) for i in range(GATHERED))
        return [INT.add(first, row) for row in chosen]

    def several(number: Value) -> list[Value]:
        """Copies the rows of the groups from `number * together` on."""
        row = INT.mul(number, together * GATHERED)
        begins = [INT.add(row, group * GATHERED) for group in range(together)]
        found: list[list[Value]] = []
        if _columns_by_rank(low, op):  # once for the code of all CTAs
            found = [rows_from(*numbered) for numbered in enumerate(begins)]
        for column in _columns(low, op):
            for line in range(lines):
                from_column = INT.add(column, line * parameter.line) if line else column
                if line == 1 and is_told_late:
                    announce(low, slot, op)
                for group, begin in enumerate(begins):
                    if len(found) == group:
                        found.append(rows_from(group, begin))
                    below = INT.mul(begin, SWIZZLE_BYTES)
                    part = replace(
                        tile, address=INT.add(tile.address, below), pitch_rows=tile.pitch
                    )
                    place = low.pointer_in(slot, box_offset(part, parameter, line))
                    nvvm.CpAsyncBulkTensorGlobalToSharedClusterOp(
                        as_cluster(place),
                        low.arguments[parameter],
                        [from_column, *found[group]],
                        barrier,
                        [],
                        mode=mode,
                        **options,
                    )
        return []

    if rows is not None:
        several(constant(0))
    else:
        loop(0, groups // together, [], several)


def _columns(low: Lowering, op: ws.GatherInOp) -> Iterator[Value]:
    """The first column, in the code of every CTA or, where its rank decides, in code for each.

    With columns that are no constants the assembler (ptxas 13.5) moves boxes for every copy: 11
    instead of 8 instructions of it, waits included, in pairs of CTAs.
    """
    numbers = _columns_by_rank(low, op)
    if not numbers:
        yield low[op.coords[1]]
        return
    for rank, number in numbers.items():
        with when(compare("eq", low.rank, rank)):
            yield constant(number)
            kept_apart(f"CTA {rank}")


def _columns_by_rank(low: Lowering, op: ws.GatherInOp) -> dict[int, int]:
    """The first column in each CTA, where they are known and differ; else nothing."""
    ranks = low.active.op.ranks
    known = {rank: number_in(op.coords[1], rank) for rank in ranks}
    numbers = {rank: number for rank, number in known.items() if number is not None}
    is_alike = len(numbers) < len(ranks) or len(set(numbers.values())) == 1
    return {} if is_alike else numbers


def _rows_of_turn(low: Lowering, op: ws.GatherInOp, known: dict[Any, list[Value]]) -> list[Value]:
    """What the region chooses for each row of the tile, which all lanes find, once for all copies
    of the same rows in a turn."""
    count, chooser = low.tile(op.target).kind.shape[0], _chooser(op)
    if (count, chooser) not in known:
        known[count, chooser] = [_chosen(low, op, constant(row)) for row in range(count)]
    return known[count, chooser]


def _chooser(op: ws.GatherInOp) -> tuple[Any, ...]:
    """The region in a form that is the same for regions that choose the same rows."""
    block = op.body.blocks[0]
    numbers: dict[Value, int] = {block.arguments[0]: 0}
    steps: list[Any] = []
    for inner in block.operations:
        operands = [numbers.get(value, value) for value in inner.operation.operands]
        attributes = [(name, str(kind)) for name, kind in inner.operation.attributes.items()]
        steps.append((inner.operation.name, *operands, *attributes))
        for result in inner.operation.results:
            numbers[result] = len(numbers)
    return tuple(steps)


def _chosen(low: Lowering, op: ws.GatherInOp, row: Value) -> Value:
    """The tensor's row that the region chooses for a row of the tile."""
    block = op.body.blocks[0]
    low[block.arguments[0]] = row
    *body, last = block.operations
    low.lower_block(body)
    return low[last.value]
