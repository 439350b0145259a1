"""Parts of the keys put together by the kernel that computes them.

What the warps of a CTA have found of its part goes to memory as they hand it over: a maximum, a sum
and an O that is not divided. The CTA that arrives last at a counter of the work tile adds up the
parts, in their order, so that the result does not depend on who that is. Each warp of `join` has
pieces of O's columns, a counter and a copy of the maxima and sums of its own: it waits for no
other.

```text
attend --maxima,totals,sums--> join --> memory --the last one--> O, LSE
```
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect._mlir import ir
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, WorkTile
from attn_mlir.schedules.core.splits import CombinedSplits, Split, Workspace
from attn_mlir.schedules.policy.tiling import OutputChunks
from attn_mlir.schedules.softmax.row import Row
from attn_mlir.schedules.softmax.state import reciprocal, store_lse, with_sink

from .roles import Share, StreamingStorage, common, hand_over, parts_of, weighed, weighed_rows

Value = Any

IN_FLIGHT = (256, 64)  # columns whose loads a warp has under way, beside one warpgroup, and two
MOST_PARTS = (
    16,
    3,
)  # of these loads, likewise: each part has maxima and sums of its own beside its columns
MAXIMUM, TOTAL = 0, 1  # of `extremes`


class CombineStorage(StreamingStorage):
    """The rings of a kernel that puts parts together: a way for each piece and for each reader.

    Attributes:
      pieces: of O's columns.
      held: pieces in a slot of `sums`: where one warp takes them, all that are handed over at a
        time.
      ways_of_warp: of `sums`, for each warp that attends.
    """

    def _declare_found(self, problem: Problem) -> None:
        self.pieces = pieces = OutputChunks.of(problem.v_head_dim, self.q_tiles)
        rows, f32 = problem.config.tile_m, ir.F32Type.get()
        readers = self.groups * self.strips * pieces.warps
        self.maxima = b.Ring("maxima", b.tile([rows], f32, "shared"), instances=readers)
        self.l_partial = b.Ring("totals", b.tile([rows], f32, "shared"), instances=readers)
        self.held = 1
        if pieces.warps == 1:
            self.held = self.handed // pieces.columns
        self.ways_of_warp = 1 if self.handed < self.slice_columns else pieces.in_slice // self.held
        instances = self.groups * self.strips * self.ways_of_warp
        tile = b.tile([rows, self.held * pieces.columns], f32, "shared")
        self.sums = b.Ring("sums", tile, instances=instances)

    @property
    def sum_parts(self) -> list[tuple[int, int]]:
        """The pieces of a slice."""
        return parts_of(self.slice_columns, self.pieces.columns)

    def hand_over(self, share: Share, maximum: Value, total: Value, *sums: Value) -> None:
        """Gives maxima and sums to each warp of `join`, and O in pieces."""
        for ring, value in ((self.maxima, maximum), (self.l_partial, total)):
            for reader in range(self.pieces.warps):
                number = b.INT.add(b.INT.mul(share.warp, self.pieces.warps), reader)
                hand_over(ring, number, value)
        for first in range(0, len(sums), self.held):
            way = b.INT.mul(share.warp, self.ways_of_warp)
            slot = self.sums.acquire(b.INT.add(way, first // self.held % self.ways_of_warp))
            for number, value in enumerate(sums[first : first + self.held]):
                b.store(value, self.piece(slot, number))
            b.commit(slot, "threads")

    def piece(self, slot: Value, number: int) -> Value:
        """One of the pieces of a slot of `sums`."""
        return b.columns(slot, number * self.pieces.columns, self.pieces.columns)

    def slots(self, warp: Value, way: int) -> Iterator[tuple[Value, list[Value]]]:
        """The first piece of each slot of a query tile that a warp of `join` takes, and that slot
        of each strip."""
        pieces = self.pieces
        for slice_ in range(self.slices):
            group = way * self.slices + slice_
            for turn in range(0, pieces.in_slice, pieces.warps * self.held):
                numbers = (group * self.strips + strip for strip in range(self.strips))
                own = turn // self.held % self.ways_of_warp
                firsts = (number * self.ways_of_warp + own for number in numbers)
                slots = [self.sums.wait(b.INT.add(warp, first)) for first in firsts]
                yield b.INT.add(warp, slice_ * pieces.in_slice + turn), slots


@dataclass(frozen=True)
class Place:
    """Where a work tile's parts lie, for one of the warps that put them together.

    Attributes:
      memory: the workspace.
      part: this CTA's.
      tile, warp: numbers of the query tile and of the warp.
      rows: of a work tile.
      pieces: of O.
    """

    memory: Workspace
    part: Split
    tile: Value
    warp: Value
    rows: int
    pieces: OutputChunks

    @classmethod
    def of(
        cls, problem: Problem, pieces: OutputChunks, tile: WorkTile, way: int, warp: Value
    ) -> "Place":
        """Of a query tile; in memory for too few of them they share the last place."""
        assert isinstance(problem.splits_, CombinedSplits)
        assert tile.part is not None
        memory = problem.splits_.memory
        blocks, heads, _ = problem.tile_space()
        head, q_tiles = tile.head, problem.config.q_tiles
        if problem.rows.head_tiles > 1:
            head = b.INT.floordiv(head, problem.rows.head_tiles)
        number = b.INT.add(b.INT.mul(tile.batch, heads), head)
        number = b.INT.add(b.INT.mul(number, blocks), tile.block)
        if q_tiles > 1:
            number = b.INT.add(b.INT.mul(number, q_tiles), way)
        number = b.INT.min(number, b.INT.sub(b.extent(memory.arrived, 0), 1))
        return cls(memory, tile.part, number, warp, problem.config.tile_m, pieces)

    def leave_rows(self, maximum: Value, total: Value) -> None:
        """Writes the maxima and sums of this part's rows."""
        for kind, value in ((MAXIMUM, maximum), (TOTAL, total)):
            coords = [kind, self.part.number, self.tile, self.warp, 0]
            b.store_global(value, self.memory.extremes, coords, [4])

    def leave(self, piece: Value, sums: Value) -> None:
        """Writes a piece of this part's O."""
        coords = [self.part.number, self.tile, piece, 0, 0]
        b.store_global(sums, self.memory.sums, coords, [3, 4])

    def is_last(self) -> Value:
        """Arrives; whether all parts are there now."""
        return b.arrive_last(self.memory.arrived, [self.tile, self.warp], self.part.count)

    def found(self, number: Value, piece: Value) -> tuple[Value, Value, Value]:
        """Maxima, sums and a piece of O of a part; beyond the last one those of no key."""
        exists = b.INT.less(number, self.part.count)
        number = b.INT.min(number, b.INT.sub(self.part.count, 1))

        def rows_of(kind: int) -> Value:
            coords = [kind, number, self.tile, self.warp, 0]
            return b.load_global(self.memory.extremes, [self.rows], coords, [4])

        lowest = b.f32_constant(-math.inf)
        maximum = b.map_elements(lambda m: b.select(exists, m, lowest), rows_of(MAXIMUM))
        shape, coords = [self.rows, self.pieces.columns], [number, self.tile, piece, 0, 0]
        return maximum, rows_of(TOTAL), b.load_global(self.memory.sums, shape, coords, [3, 4])


def join(problem: Problem, storage: CombineStorage, tile: WorkTile, warp: Value) -> None:
    """Adds up what the warps have found, leaves it in memory and, as the last one, all parts."""
    row = Row.of(problem, problem.score_scale(tile))
    for way in range(storage.q_tiles):
        _join(problem, storage, tile, row, way, warp)


def _join(
    problem: Problem, storage: CombineStorage, tile: WorkTile, row: Row, way: int, warp: Value
) -> None:
    """The same for one query tile."""
    pieces, in_tile = storage.pieces, storage.slices * storage.strips
    place = Place.of(problem, pieces, tile, way, warp)
    warps = range(way * in_tile, (way + 1) * in_tile)
    instances = [b.INT.add(warp, number * pieces.warps) for number in warps]
    maxima, l_partial = (
        _taken(ring, instances, storage.strips) for ring in (storage.maxima, storage.l_partial)
    )
    maximum, factors = common(row, maxima)
    place.leave_rows(maximum, weighed(l_partial, factors))
    for first, slots in storage.slots(warp, way):
        for number in range(storage.held):
            sums = [b.load(storage.piece(slot, number)) for slot in slots]
            place.leave(b.INT.add(first, number), weighed_rows(sums, factors))
        for slot in slots:
            b.release(slot, "threads")
    with b.when(place.is_last()), b.iterations(pieces.of_warp) as turn:
        piece = b.INT.add(warp, b.INT.mul(turn, pieces.warps))
        finish(problem, problem.query_tile(tile, way), row, place, piece, way)


def _taken(ring: b.Ring, instances: Sequence[Value], count: int) -> list[Value]:
    """What the first ways have, as many as are wanted: all slices of a strip have the same."""
    found: list[Value] = []
    for number, way in enumerate(instances):
        slot = ring.wait(way)
        if number < count:
            found.append(b.load(slot))
        b.release(slot, "threads")
    return found


def finish(
    problem: Problem, tile: WorkTile, row: Row, place: Place, piece: Value, way: int
) -> None:
    """Adds up a piece of all parts and writes it, and the LSE."""
    pieces = place.pieces
    kind = pieces.groups - 1
    at_a_time = min(IN_FLIGHT[kind] // pieces.columns, MOST_PARTS[kind])

    def iteration(turn: Value, *state: Value) -> list[Value]:
        first = b.INT.mul(turn, at_a_time)
        found = [place.found(b.INT.add(first, i), piece) for i in range(at_a_time)]
        maxima, l_partial, sums = (list(some) for some in zip(state, *found, strict=True))
        maximum, factors = common(row, maxima)
        return [maximum, weighed(l_partial, factors), weighed_rows(sums, factors)]

    zero = b.f32_constant(0.0)
    begin = [
        b.fill([place.rows], b.f32_constant(-math.inf)),
        b.fill([place.rows], zero),
        b.fill([place.rows, pieces.columns], zero),
    ]
    turns = b.INT.ceildiv(place.part.count, at_a_time)
    maximum, total, sums = b.loop(0, turns, begin, iteration)
    row0 = problem.first_position(tile, way)
    divisor = with_sink(problem, row, tile, row0, maximum, total)
    output = problem.output_scale(tile)
    inverse = b.map_elements(lambda t: reciprocal(t, output), divisor)
    result = b.rounded(b.times_rows(sums, inverse), problem.output)
    column = b.INT.mul(piece, pieces.columns)
    with b.when(b.INT.less(column, b.constant(problem.v_head_dim))):
        problem.rows.store_columns(result, tile.results, tile.head, row0, column)
    if problem.lse is not None:
        with b.when(b.compare("eq", piece, 0)):
            store_lse(problem, row, tile, row0, maximum, total)
