"""Splits of the keys combined by the kernel that computes them.

Each CTA writes the m_i, l_i and undivided O of its split to the workspace. The CTA that arrives
last at the work tile's counter adds up the splits in their order, so that the result does not
depend on which CTA that is. Each warp of `combine` owns chunks of O's columns, a counter and a copy
of m_i and l_i: it waits for no other warp.

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

from .roles import (
    Share,
    StreamingStorage,
    column_ranges,
    common_maximum,
    publish,
    scaled_row_sum,
    scaled_sum,
)

Value = Any

IN_FLIGHT = (
    256,
    64,
)  # columns that a warp loads at a time, with one attending warpgroup and with two
MAX_SPLITS_IN_FLIGHT = (16, 3)  # splits loaded at a time, likewise, each with its m_i and l_i
MAXIMUM, TOTAL = 0, 1  # of `extremes`


class CombineStorage(StreamingStorage):
    """The rings of a kernel that combines splits, with an instance for each chunk and reader.

    Attributes:
      output_chunks: the chunks of O's columns.
      chunks_per_slot: chunks in a slot of `accumulators`; all that are published at a time if one
        warp reads them.
      instances_of_warp: instances of `accumulators` for each attending warp.
    """

    def _declare_results(self, problem: Problem) -> None:
        self.output_chunks = output_chunks = OutputChunks.of(problem.v_head_dim, self.q_tiles)
        rows, f32 = problem.config.tile_m, ir.F32Type.get()
        readers = self.groups * self.key_slices * output_chunks.warps
        self.maxima = b.Ring("maxima", b.tile([rows], f32, "shared"), instances=readers)
        self.row_sums = b.Ring("totals", b.tile([rows], f32, "shared"), instances=readers)
        self.chunks_per_slot = 1
        if output_chunks.warps == 1:
            self.chunks_per_slot = self.published_columns // output_chunks.columns
        self.instances_of_warp = 1
        if self.published_columns == self.slice_columns:
            self.instances_of_warp = output_chunks.in_slice // self.chunks_per_slot
        instances = self.groups * self.key_slices * self.instances_of_warp
        tile = b.tile([rows, self.chunks_per_slot * output_chunks.columns], f32, "shared")
        self.accumulators = b.Ring("sums", tile, instances=instances)

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """First column and column count of each chunk of a slice."""
        return column_ranges(self.slice_columns, self.output_chunks.columns)

    def publish(self, share: Share, maximum: Value, total: Value, *accumulators: Value) -> None:
        """Hands m_i and l_i to each warp of `combine`, and O in chunks."""
        for ring, value in ((self.maxima, maximum), (self.row_sums, total)):
            for reader in range(self.output_chunks.warps):
                number = b.INT.add(b.INT.mul(share.warp, self.output_chunks.warps), reader)
                publish(ring, number, value)
        for first in range(0, len(accumulators), self.chunks_per_slot):
            base = b.INT.mul(share.warp, self.instances_of_warp)
            instance = b.INT.add(base, first // self.chunks_per_slot % self.instances_of_warp)
            slot = self.accumulators.acquire(instance)
            for number, value in enumerate(accumulators[first : first + self.chunks_per_slot]):
                b.store(value, self.chunk(slot, number))
            b.commit(slot, "threads")

    def chunk(self, slot: Value, number: int) -> Value:
        """Chunk `number` of a slot of `accumulators`."""
        return b.columns(slot, number * self.output_chunks.columns, self.output_chunks.columns)

    def slots(self, warp: Value, q_tile: int) -> Iterator[tuple[Value, list[Value]]]:
        """The first chunk of each slot that a warp of `combine` reads, with that slot of each key
        slice.
        """
        chunks, per_slot = self.output_chunks, self.chunks_per_slot
        for slice_ in range(self.slices):
            group = q_tile * self.slices + slice_
            for chunk in range(0, chunks.in_slice, chunks.warps * per_slot):
                numbers = (group * self.key_slices + x for x in range(self.key_slices))
                instance = chunk // per_slot % self.instances_of_warp
                firsts = (number * self.instances_of_warp + instance for number in numbers)
                slots = [self.accumulators.wait(b.INT.add(warp, first)) for first in firsts]
                yield b.INT.add(warp, slice_ * chunks.in_slice + chunk), slots


@dataclass(frozen=True)
class WorkspaceSlot:
    """The part of the workspace that one combining warp uses for a query tile.

    Attributes:
      memory: the workspace.
      split: the split of this CTA.
      tile, warp: numbers of the query tile and of the warp.
      rows: rows of a query tile.
      output_chunks: the chunks of O.
    """

    memory: Workspace
    split: Split
    tile: Value
    warp: Value
    rows: int
    output_chunks: OutputChunks

    @classmethod
    def of(
        cls, problem: Problem, chunks: OutputChunks, tile: WorkTile, q_tile: int, warp: Value
    ) -> "WorkspaceSlot":
        """The slot of a query tile; query tiles past the workspace share the last slot."""
        assert isinstance(problem.splits, CombinedSplits)
        assert tile.split is not None
        memory = problem.splits.memory
        blocks, heads, _ = problem.tile_space()
        head, q_tiles = tile.head, problem.config.q_tiles
        if problem.rows.head_tiles > 1:
            head = b.INT.floordiv(head, problem.rows.head_tiles)
        number = b.INT.add(b.INT.mul(tile.batch, heads), head)
        number = b.INT.add(b.INT.mul(number, blocks), tile.block)
        if q_tiles > 1:
            number = b.INT.add(b.INT.mul(number, q_tiles), q_tile)
        number = b.INT.min(number, b.INT.sub(b.extent(memory.arrived, 0), 1))
        return cls(memory, tile.split, number, warp, problem.config.tile_m, chunks)

    def store_statistics(self, maximum: Value, total: Value) -> None:
        """Writes m_i and l_i of this split."""
        for kind, value in ((MAXIMUM, maximum), (TOTAL, total)):
            coords = [kind, self.split.number, self.tile, self.warp, 0]
            b.store_global(value, self.memory.extremes, coords, [4])

    def store_output(self, chunk: Value, accumulators: Value) -> None:
        """Writes a chunk of this split's O."""
        coords = [self.split.number, self.tile, chunk, 0, 0]
        b.store_global(accumulators, self.memory.accumulators, coords, [3, 4])

    def is_last(self) -> Value:
        """i1: arrives at the counter, and whether this was the last split to arrive."""
        return b.arrive_last(self.memory.arrived, [self.tile, self.warp], self.split.count)

    def load_split(self, number: Value, chunk: Value) -> tuple[Value, Value, Value]:
        """m_i, l_i and a chunk of O of split `number`; past the last split, m_i is -inf."""
        exists = b.INT.less(number, self.split.count)
        number = b.INT.min(number, b.INT.sub(self.split.count, 1))

        def rows_of(kind: int) -> Value:
            coords = [kind, number, self.tile, self.warp, 0]
            return b.load_global(self.memory.extremes, [self.rows], coords, [4])

        lowest = b.f32_constant(-math.inf)
        maximum = b.map_elements(lambda m: b.select(exists, m, lowest), rows_of(MAXIMUM))
        shape, coords = [self.rows, self.output_chunks.columns], [number, self.tile, chunk, 0, 0]
        total = rows_of(TOTAL)
        return maximum, total, b.load_global(self.memory.accumulators, shape, coords, [3, 4])


def combine(problem: Problem, storage: CombineStorage, tile: WorkTile, warp: Value) -> None:
    """Adds up the warps' results, stores them and, in the last CTA, combines all splits."""
    row = Row.of(problem, problem.score_scale(tile))
    for q_tile in range(storage.q_tiles):
        _combine(problem, storage, tile, row, q_tile, warp)


def _combine(
    problem: Problem, storage: CombineStorage, tile: WorkTile, row: Row, q_tile: int, warp: Value
) -> None:
    """Combines one query tile."""
    chunks, in_tile = storage.output_chunks, storage.slices * storage.key_slices
    workspace = WorkspaceSlot.of(problem, chunks, tile, q_tile, warp)
    warps = range(q_tile * in_tile, (q_tile + 1) * in_tile)
    instances = [b.INT.add(warp, number * chunks.warps) for number in warps]
    maxima, row_sums = (
        _load_published(ring, instances, storage.key_slices)
        for ring in (storage.maxima, storage.row_sums)
    )
    maximum, alphas = common_maximum(row, maxima)
    workspace.store_statistics(maximum, scaled_sum(row_sums, alphas))
    for first, slots in storage.slots(warp, q_tile):
        for number in range(storage.chunks_per_slot):
            accumulators = [b.load(storage.chunk(slot, number)) for slot in slots]
            workspace.store_output(b.INT.add(first, number), scaled_row_sum(accumulators, alphas))
        for slot in slots:
            b.release(slot, "threads")
    with b.when(workspace.is_last()), b.iterations(chunks.of_warp) as index:
        chunk = b.INT.add(warp, b.INT.mul(index, chunks.warps))
        finish(problem, problem.query_tile(tile, q_tile), row, workspace, chunk, q_tile)


def _load_published(ring: b.Ring, instances: Sequence[Value], count: int) -> list[Value]:
    """The first `count` instances; all slices of O have the same values for a key slice."""
    loaded: list[Value] = []
    for number, instance in enumerate(instances):
        slot = ring.wait(instance)
        if number < count:
            loaded.append(b.load(slot))
        b.release(slot, "threads")
    return loaded


def finish(
    problem: Problem,
    tile: WorkTile,
    row: Row,
    workspace: WorkspaceSlot,
    chunk: Value,
    q_tile: int,
) -> None:
    """Adds up a chunk of all splits; writes it, and the LSE with chunk 0."""
    chunks = workspace.output_chunks
    groups = chunks.groups - 1
    at_a_time = min(IN_FLIGHT[groups] // chunks.columns, MAX_SPLITS_IN_FLIGHT[groups])

    def iteration(index: Value, *state: Value) -> list[Value]:
        first = b.INT.mul(index, at_a_time)
        splits = [workspace.load_split(b.INT.add(first, i), chunk) for i in range(at_a_time)]
        maxima, row_sums, accumulators = (list(some) for some in zip(state, *splits, strict=True))
        maximum, alphas = common_maximum(row, maxima)
        return [maximum, scaled_sum(row_sums, alphas), scaled_row_sum(accumulators, alphas)]

    zero = b.f32_constant(0.0)
    initial = [
        b.fill([workspace.rows], b.f32_constant(-math.inf)),
        b.fill([workspace.rows], zero),
        b.fill([workspace.rows, chunks.columns], zero),
    ]
    iterations = b.INT.ceildiv(workspace.split.count, at_a_time)
    maximum, total, accumulators = b.loop(0, iterations, initial, iteration)
    row0 = problem.first_position(tile, q_tile)
    divisor = with_sink(problem, row, tile, row0, maximum, total)
    output = problem.output_scale(tile)
    inverse = b.map_elements(lambda t: reciprocal(t, output), divisor)
    result = b.rounded(b.times_rows(accumulators, inverse), problem.output)
    column = b.INT.mul(chunk, chunks.columns)
    with b.when(b.INT.less(column, b.constant(problem.v_head_dim))):
        problem.rows.store_columns(result, tile.results, tile.head, row0, column)
    if problem.lse is not None:
        with b.when(b.compare("eq", chunk, 0)):
            store_lse(problem, row, tile, row0, maximum, total)
