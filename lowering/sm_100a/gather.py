"""TMA gather copies, `tile::gather4`: one copy loads four rows at any indices of a tensor.

A box of the tensor map is one 128-byte line of one row; a copy loads four of them as a box of four
rows, swizzled by its address like the box of a whole tile. One thread issues all copies of a tile,
line by line for some groups of four rows at a time: ptxas keeps each group's box in uniform
registers, and a copy changes its address and column. That takes the slot's address before the block
of copies (`Slot.start`).

If row numbers are still loading, ptxas (13.5) builds the box of later copies in ordinary registers
and moves it once more. So the first line loads each group's rows right before its copy, and the
expected bytes are announced after that line. If one branch guards copies into several slots
(`branched_turns`), all lanes load the rows of all groups after it, and the boxes of all these
copies share registers: 255 instead of 305 instructions per key tile.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, nvvm
from attn_mlir.dialect.scalars import INT, compare, constant, loop, when

from ..access.inline_ptx import unmerged_branch
from ..copies.copies import box_offset
from ..layouts import SWIZZLE_BYTES, chunk_count
from ..rings.clusters import as_cluster, counted_at, in_role, number_in, receivers
from ..rings.followed import issuing
from ..rings.rings import announce
from ..state.lowering import Lowering, lowers

Value = Any

ROWS_PER_COPY = 4  # rows of one copy; PTX ISA, cp.async.bulk.tensor, tile::gather4
GROUPS = 4  # of rows at a time: 7 of 80 uniform registers each, and as many for copies in flight


@lowers(ws.GatherInOp)
def _gather_in(low: Lowering, op: ws.GatherInOp) -> None:
    iteration, rows = low.active.iteration, None
    if iteration is not None and low.tile(op.target).kind.shape[0] <= GROUPS * ROWS_PER_COPY:
        rows = _rows_of_iteration(low, op, iteration.rows)
    with issuing(low):
        _gather(low, op, rows)


def _gather(low: Lowering, op: ws.GatherInOp, rows: list[Value] | None) -> None:
    """Issues all copies, of `rows`, or of rows that are loaded before each copy."""
    slot = low.slot(op.target)
    parameter = low.signature.gather_map(op)
    tile, to = low.tile(op.target), in_role(low, receivers(op))
    barrier, options = counted_at(low, slot.ring.full.address(slot.index), to, slot.ring.full_at)
    mode = ir.Attribute.parse("#nvvm.tma_load_mode<tile_gather4>")
    first = low[op.coords[0]]
    groups = tile.kind.shape[0] // ROWS_PER_COPY
    lines = chunk_count(tile.kind.shape[1], parameter.element_bits)
    together = math.gcd(groups, GROUPS) if rows is None else groups
    announces_late = groups == together and lines > 1
    if not announces_late:
        announce(low, slot, op)

    def rows_from(group: int, begin: Value) -> list[Value]:
        """The tensor rows of a group."""
        positions = range(group * ROWS_PER_COPY, (group + 1) * ROWS_PER_COPY)
        if rows is not None:
            return [INT.add(first, rows[position]) for position in positions]
        chosen = (_chosen(low, op, INT.add(begin, i)) for i in range(ROWS_PER_COPY))
        return [INT.add(first, row) for row in chosen]

    def several(number: Value) -> list[Value]:
        """Copies the rows of the groups from `number * together` on."""
        row = INT.mul(number, together * ROWS_PER_COPY)
        begins = [INT.add(row, group * ROWS_PER_COPY) for group in range(together)]
        row_groups: list[list[Value]] = []
        if _columns_by_rank(low, op):  # once for the code of all CTAs
            row_groups = [rows_from(*numbered) for numbered in enumerate(begins)]
        for column in _columns(low, op):
            for line in range(lines):
                from_column = INT.add(column, line * parameter.line) if line else column
                if line == 1 and announces_late:
                    announce(low, slot, op)
                for group, begin in enumerate(begins):
                    if len(row_groups) == group:
                        row_groups.append(rows_from(group, begin))
                    below = INT.mul(begin, SWIZZLE_BYTES)
                    part = replace(
                        tile, address=INT.add(tile.address, below), pitch_rows=tile.pitch
                    )
                    pointer = low.pointer_in(slot, box_offset(part, parameter, line))
                    nvvm.CpAsyncBulkTensorGlobalToSharedClusterOp(
                        as_cluster(pointer),
                        low.arguments[parameter],
                        [from_column, *row_groups[group]],
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
    """The first column: once for all CTAs or, if it depends on the rank, in a branch for each CTA.

    With run-time columns ptxas (13.5) moves the box for every copy: 11 instead of 8 instructions
    per copy, waits included, in pairs of CTAs.
    """
    numbers = _columns_by_rank(low, op)
    if not numbers:
        yield low[op.coords[1]]
        return
    for rank, number in numbers.items():
        with when(compare("eq", low.rank, rank)):
            yield constant(number)
            unmerged_branch(f"CTA {rank}")


def _columns_by_rank(low: Lowering, op: ws.GatherInOp) -> dict[int, int]:
    """The first column in each CTA, if they are constants that differ; else empty."""
    ranks = low.active.op.ranks
    columns = {rank: number_in(op.coords[1], rank) for rank in ranks}
    numbers = {rank: number for rank, number in columns.items() if number is not None}
    is_uniform = len(numbers) < len(ranks) or len(set(numbers.values())) == 1
    return {} if is_uniform else numbers


def _rows_of_iteration(
    low: Lowering, op: ws.GatherInOp, cached: dict[Any, list[Value]]
) -> list[Value]:
    """The tensor rows for all rows of the tile, computed by all lanes, once per iteration for all
    copies of the same rows.
    """
    count, chooser = low.tile(op.target).kind.shape[0], _chooser(op)
    if (count, chooser) not in cached:
        cached[count, chooser] = [_chosen(low, op, constant(row)) for row in range(count)]
    return cached[count, chooser]


def _chooser(op: ws.GatherInOp) -> tuple[Any, ...]:
    """A canonical form of the region, equal for regions that compute the same rows."""
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
    """The tensor row that the region computes for a row of the tile."""
    block = op.body.blocks[0]
    low[block.arguments[0]] = row
    *body, last = block.operations
    low.lower_block(body)
    return low[last.value]
