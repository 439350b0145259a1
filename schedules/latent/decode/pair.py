"""Absorbed latent attention over whole sequences for 128 heads by a pair of CTAs: loads and mask.

The compute roles are in `absorbed_pair`. A work tile is one query; of a block of 128 keys a CTA
copies 64 as keys, in chunks of columns, and half of the columns of all as values, 64 keys at a
time.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from attn_mlir.dialect import ws
from attn_mlir.dialect.ws.compute import WORD_BITS
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import Test
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.softmax.mask import hide_words
from attn_mlir.schedules.softmax.row import Row
from attn_mlir.schedules.sources.lookahead import each_iteration
from attn_mlir.schedules.sources.paged_rows import CopiedTile

from ..common.absorbed_pair import KEY_HALVES, VALUE_COLUMNS, PairStorage, store_output
from ..common.pair_queries import Heads
from ..common.row_boxes import RowBoxes
from .work import ContiguousWork


@contextmanager
def every_pair_tile(problem: Problem) -> Generator[WorkTile]:
    """Emits a role's loop over work tiles; yields this CTA's, whose head is a tile of 64 heads."""
    *blocks, heads, batch = problem.tile_space()
    space = [*blocks, b.INT.floordiv(heads, ws.PAIR), batch]
    with b.tiles(space, problem.config.tile_order) as (block, pair, number):
        head = b.INT.add(b.INT.mul(pair, ws.PAIR), b.rank())
        yield problem.work_tile(block, head, number)


class ContiguousPairWork(ContiguousWork):
    """A work tile of a pair: each head has two rows of scores, for half of a block's keys each."""

    agent: ClassVar[str] = "warps"
    needs_row_max: ClassVar[bool] = True  # which both rows of a head agree on

    def __init__(self, problem: Problem, storage: PairStorage, tile: WorkTile):
        super().__init__(problem, tile)
        self._storage = storage

    def _masked_scores(self, scores: Value, test: Test | None, index: Value) -> Value:
        if test is None:
            return scores
        storage, column0 = self._storage, self._visited.first_column(index)

        def word_position(row: Value, number: Value) -> tuple[Value, Value]:
            first = b.INT.mul(storage.key_half(row), storage.cta_keys)
            column = b.INT.add(b.INT.add(column0, first), b.INT.mul(number, WORD_BITS))
            return self._row0, column

        return hide_words(self._problem, self._tile, scores, test, word_position)

    def store_statistics(
        self, row: Row, maximum: Value, total: Value, largest: Value | None
    ) -> None:
        """Writes LSE, of a part as two terms, from the first row of each head."""
        problem = self._problem
        if problem.lse is None:
            return
        formulas = [row.lse_high, row.lse_low] if problem.is_partial else [row.lse]
        heads = heads_of(problem, self._tile)
        for number, formula in enumerate(formulas):
            term = [number] if problem.is_partial else []
            lead, position = [*term, *heads.o_coords[:-1]], heads.o_coords[-1]
            end = b.INT.add(heads.head, problem.config.tile_m)
            rows = b.limit(problem.lse, end, len(lead))
            values = b.map_elements(formula, maximum, total)
            b.store_global(values, rows, [*lead, heads.head, position], [len(lead)])


def heads_of(problem: Problem, tile: WorkTile) -> Heads:
    """The heads of a work tile, with the coordinates of its query and result."""
    position = problem.first_position(tile, 0)
    q_coords, o_coords = (
        (*sequence.lead, sequence.row(position)) for sequence in (tile.queries, tile.results)
    )
    (q,) = problem.q
    head = b.INT.mul(tile.head, problem.config.packed_heads)
    return Heads(q, problem.o, q_coords, o_coords, head)


def load_keys(problem: Problem, storage: PairStorage, boxes: RowBoxes, tile: WorkTile) -> None:
    """Copies Q's first columns in, this CTA's half of the keys of each block, and O out."""
    heads, key_tiles = heads_of(problem, tile), problem.column_tiles(tile)
    first = b.INT.mul(b.rank(), storage.cta_keys)

    def first_key(index: Value | int) -> Value:
        return b.INT.add(key_tiles.first_column(index), first)

    def find(index: Value | int) -> list[Value]:
        return boxes.read_entries(tile, first_key(index))

    def fill(index: Value | int, entries: Sequence[Value], *, is_whole: bool) -> None:
        copied = CopiedTile(tile, first_key(index), entries)
        for column in range(0, problem.columns, storage.slots.chunk):
            slot = storage.k.acquire()
            boxes.load(slot, copied, column, ends=False)
            b.commit(slot, "copy_engine")

    each_iteration(key_tiles, find, fill, lambda: storage.q.load_first(heads))
    store_output(problem, storage, heads, overlaps=True)


def load_values(problem: Problem, storage: PairStorage, boxes: RowBoxes, tile: WorkTile) -> None:
    """Copies this CTA's half of the columns of each block's values.

    Q's tail goes through the same slots first.
    """
    key_tiles, count = problem.column_tiles(tile), problem.config.tile_n // KEY_HALVES
    column = b.INT.mul(b.rank(), VALUE_COLUMNS)

    def first_keys(index: Value | int) -> list[Value]:
        first = key_tiles.first_column(index)
        return [b.INT.add(first, half * count) for half in range(KEY_HALVES)]

    def find(index: Value | int) -> list[Value]:
        return [entry for key in first_keys(index) for entry in boxes.read_entries(tile, key)]

    def fill(index: Value | int, entries: Sequence[Value], *, is_whole: bool) -> None:
        copies = len(entries) // KEY_HALVES
        for half, key in enumerate(first_keys(index)):
            slot = storage.v.acquire()
            copied = CopiedTile(tile, key, entries[half * copies : (half + 1) * copies])
            boxes.load(slot, copied, column, ends=not is_whole)
            b.commit(slot, "copy_engine")

    def begin() -> None:
        storage.q.load_tail(heads_of(problem, tile))
        storage.q.wait_for_tail("threads")

    each_iteration(key_tiles, find, fill, begin)
