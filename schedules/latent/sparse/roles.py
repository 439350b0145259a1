"""Roles that only sparse latent attention has: reading indices and gathering rows.

A row of a tile is a head; rows beyond the heads repeat heads, and their results are not stored.
"""

import functools
import math
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple, Protocol

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith
from attn_mlir.dialect.ws.compute import WORD_BITS
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.softmax.row import Row

from ..common import absorbed
from ..common.rows import LOADERS, PlainRows, ScaledRows
from .problem import NOWHERE, Query, SparseProblem, SparseStorage, Value


class Lists(Protocol):
    """The rings of indices; attributes and methods as of `SparseStorage`.

    If `seen` is `rows`, a slot has both, the bits after the rows.
    """

    agent: str
    rows: b.Ring
    seen: b.Ring

    def signal_visible(self, words: Value) -> None: ...

    def word(self, row: Value, number: Value) -> Value: ...


def find(problem: SparseProblem, storage: Lists, query: Query) -> None:
    """Computes the cache rows of each block; hidden entries become `NOWHERE`.

    So no masked row is read, which may hold NaN that a weight of 0 would not hide. Roles that
    prefetch a block get one without rows at the end.
    """
    count = problem.config.tile_n
    rows_from = problem.rows_of(query)

    def block(number: Value) -> list[Value]:
        indices = rows_from(b.INT.mul(b.INT.add(query.first, number), count))
        slot, is_one_ring = storage.rows.acquire(), storage.seen is storage.rows
        b.store(indices, b.rows(slot, 0, count))
        if not is_one_ring:
            b.commit(slot, "threads")
        bits = b.bits(b.map_elements(_is_row, indices, element=b.i1()))
        if is_one_ring:
            b.store(bits, _words(problem, slot))
            b.commit(slot, "threads")
        storage.signal_visible(bits)
        return []

    b.loop(0, query.blocks, [], block)
    for _ in range(problem.source.prefetched):
        slot = storage.rows.acquire()
        b.store(b.fill([count], b.constant(NOWHERE)), slot)
        b.commit(slot, "threads")


def _words(problem: SparseProblem, slot: Value) -> Value:
    """The bits of a block, the last words of a slot."""
    (size,) = ws.TileType(slot.type).shape
    return b.rows(slot, size - problem.words, problem.words)


def load(
    problem: SparseProblem, storage: SparseStorage, source: PlainRows, query: Query, *, part: int
) -> None:
    """Gathers a part of the rows of each key tile; the first part also copies Q in and O out."""
    if part == 0:
        _load_queries(problem, storage, query)
    count, work = problem.config.tile_n // LOADERS, SparseWork(problem, storage, query)

    def block(_: Value) -> list[Value]:
        slot = storage.rows.wait()
        is_visible, rows = work.any_visible_in(slot), b.rows(slot, part * count, count)
        keys = storage.keys.acquire()

        def row(offset: Value) -> Value:
            return b.entry(rows, offset)

        with b.when(is_visible):
            b.gather_in(source.tensor, b.rows(keys, part * count, count), [0, 0], row)
        b.commit(keys, "copy_engine")
        b.release(slot, "threads")
        return []

    b.loop(0, query.blocks, [], block)
    if part == 0:
        if problem.overlaps:
            b.launch_dependents()
        _store_result(problem, storage, query)


class Share(NamedTuple):
    """A tile that warps write of a block: some columns of the rows of some entries.

    Attributes:
      ring: of tiles of bf16.
      first: of the entries; those from it on fill the tile's rows.
      columns: of rows of the cache.
      shift: as of `ScaledRows.read`.
    """

    ring: b.Ring
    first: Value | int
    columns: range
    shift: Value | None = None


def upcast_rows(
    problem: SparseProblem,
    storage: Lists,
    source: ScaledRows,
    shares: Sequence[Share],
    query: Query,
) -> None:
    """Loads the rows of each block, one block ahead, and writes their upcast tiles.

    Of several tiles, each is loaded when the same tile of the block before is written and its
    registers are free; a single one is loaded before that.
    """
    work, has_several = SparseWork(problem, storage, query), len(shares) > 1
    layouts = [share for share in shares for _ in range(source.layouts(share.columns))]

    def next_rows() -> list[Value]:
        """The rows of the next block, for each layout of each tile."""
        rows = storage.rows.wait()
        fragments = [_rows(rows, share) for share in layouts]
        b.release(rows, "threads")
        return fragments

    def read(share: Share, rows: Sequence[Value]) -> list[Value]:
        share_rows = [row for other, row in zip(layouts, rows, strict=True) if other is share]
        return source.read(share_rows, share.columns, share.shift)

    def write(share: Share, is_visible: Value, fragments: Sequence[Value]) -> None:
        slot = share.ring.acquire()
        with b.when(is_visible):
            source.upcast_rows(fragments, slot, share.columns)
        b.commit(slot, storage.agent)

    def block(_: Value, *before: Value) -> list[Value]:
        rows, is_visible, fragments = next_rows(), work.any_visible(), list[Value]()
        for share, begin, end in parts:
            if has_several:
                write(share, is_visible, before[begin:end])
            fragments += read(share, rows)
            if not has_several:
                write(share, is_visible, before[begin:end])
        return fragments

    rows = next_rows()
    first = [read(share, rows) for share in shares]
    ends = [*accumulate(map(len, first), initial=0)]
    parts = [*zip(shares, ends, ends[1:], strict=False)]
    b.loop(0, query.blocks, [*chain(*first)], block)


def _rows(rows: Value, share: Share) -> Value:
    """The rows of a tile, of a block's rows."""
    (count, _) = ws.TileType(share.ring.tile).shape
    if count == ws.TileType(rows.type).shape[0]:
        return b.load(rows)

    def row(offset: Value) -> Value:
        return b.entry(rows, b.INT.add(offset, share.first))

    return b.generate(row, [count], b.i32())


def move_and_score(problem: SparseProblem, storage: SparseStorage, query: Query) -> None:
    """As `absorbed.issue_qk`, in one thread with the copies of Q before and of O after it."""
    _load_queries(problem, storage, query)
    absorbed.issue_qk(problem, storage, SparseWork(problem, storage, query))
    if problem.overlaps:
        b.launch_dependents()
    _store_result(problem, storage, query)


def _load_queries(problem: SparseProblem, storage: SparseStorage, query: Query) -> None:
    slot, heads = storage.q.acquire(), problem.tile_heads
    for first in range(0, problem.config.tile_m, heads):
        count = min(heads, problem.config.tile_m - first)
        part = b.rows(slot, first, count)
        dims = [len(query.q_coords), len(query.q_coords) + 1]
        b.copy_in(problem.q, part, [*query.q_coords, query.head, 0], dims)
    b.commit(slot, "copy_engine")


def _store_result(problem: SparseProblem, storage: SparseStorage, query: Query) -> None:
    slot = storage.out.wait()
    part = b.rows(slot, 0, problem.tile_heads)
    dims = [len(query.o_coords), len(query.o_coords) + 1]
    b.copy_out(part, problem.o, [*query.o_coords, query.head, 0], dims)
    b.release(slot, "copy_engine")


class SparseWork:
    """One query: blocks of the entries of its list, and its lines of results."""

    def __init__(
        self,
        problem: SparseProblem,
        storage: Lists,
        query: Query,
        seen: b.Ring | None = None,
    ):
        """With the role's ring of visible bits, by default `storage.seen`."""
        self._problem, self._storage, self._query = problem, storage, query
        self._seen = seen or storage.seen
        self.count = query.blocks
        self.needs_row_max = problem.max_logits is not None or problem.ctas > 1

    def any_visible(self) -> Value:
        """Waits for the bits of a block; i1 whether any of its entries is visible."""
        bits = self._seen.wait()
        is_visible = self.any_visible_in(bits)
        b.release(bits, "threads")
        return is_visible

    def loop_over_blocks(
        self, ring: b.Ring, state: list[Value], iteration: Callable[..., list[Value]]
    ) -> list[Value]:
        """One loop: the bits mask the scores."""

        def block(_: Value, *state: Value) -> list[Value]:
            return iteration(lambda: self._scores(ring), *state)

        return b.loop(0, self.count, state, block)

    def _scores(self, ring: b.Ring) -> tuple[Value, Value]:
        """The masked scores of a block.

        A block without a visible entry has no product: its scores are stored here, so that one load
        serves all blocks and no register is initialised before it.
        """
        bits_slot, shape = self._seen.wait(), list(ws.TileType(ring.tile).shape)
        hidden, bits = b.f32_constant(-math.inf), _words(self._problem, bits_slot)

        def word(row: Value, number: Value) -> Value:
            return b.entry(bits, self._storage.word(row, number))

        words = b.generate(word, [shape[0], shape[1] // WORD_BITS], b.i32())
        is_visible = self.any_visible_in(bits_slot)
        b.release(bits_slot, "threads")
        slot = ring.wait()
        with b.when(b.compare("eq", is_visible, b.false())):
            b.store(b.fill(shape, hidden), slot)
        scores = b.load(slot)
        b.release(slot, self._storage.agent)
        return b.mask_select(scores, words, hidden), is_visible

    def any_visible_in(self, slot: Value) -> Value:
        """i1: whether any entry of the block whose bits are in a slot is visible."""
        bits = _words(self._problem, slot)
        words = [b.entry(bits, b.constant(i)) for i in range(self._problem.words)]
        return b.compare("ne", functools.reduce(lambda x, y: arith.OrIOp(x, y).result, words), 0)

    def divisor(self, row: Row, maximum: Value, total: Value) -> Value:
        """l_i with the weight of each head's sink; a row without a visible entry keeps its 0."""
        problem = self._problem
        if problem.sinks is None:
            return total

        def element(m: Value, t: Value, row_index: Value) -> Value:
            sink = problem.sink(self._query, row_index)
            zero = b.f32_constant(0.0)
            return b.select(b.fcompare("OEQ", t, zero), zero, b.fadd(t, row.of_logit(sink, m)))

        return b.map_rows(element, maximum, total)

    def store_statistics(
        self, row: Row, maximum: Value, total: Value, largest: Value | None
    ) -> None:
        """Stores the operation's results for each head."""
        self._problem.store_statistics(self._query, row, maximum, total, largest)


def _is_row(row: Value) -> Value:
    return b.compare("sge", row, 0)
