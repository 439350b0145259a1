"""What sparse latent attention has of its own: how keys are found and gathered, and which count.

A row of a tile is a head; rows beyond the heads hold heads once more, and nobody writes what comes
of them.
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
from ..common.rows import LOADERS, NarrowRows, WideRows
from .problem import NOWHERE, Query, SparseProblem, SparseStorage, Value


class Lists(Protocol):
    """The rings by which a kernel's keys are found; attributes and methods as of `SparseStorage`.

    Where `seen` is `rows`, a slot has both, the bits behind the rows.
    """

    agent: str
    rows: b.Ring
    seen: b.Ring

    def tell(self, words: Value) -> None: ...

    def word(self, row: Value, place: Value) -> Value: ...


def find(problem: SparseProblem, storage: Lists, query: Query) -> None:
    """Finds the rows of each block; an entry that does not count becomes a row that no cache has.

    Nothing reads a row of the cache that is masked, then: it may hold NaN, which a weight of 0 does
    not take away. For roles that read a block ahead there is one without rows at the end.
    """
    count = problem.config.tile_n
    rows_from = problem.rows_of(query)

    def block(number: Value) -> list[Value]:
        found = rows_from(b.INT.mul(b.INT.add(query.first, number), count))
        slot, is_whole = storage.rows.acquire(), storage.seen is storage.rows
        b.store(found, b.rows(slot, 0, count))
        if not is_whole:
            b.commit(slot, "threads")
        bits = b.bits(b.map_elements(_is_row, found, element=b.i1()))
        if is_whole:
            b.store(bits, _words(problem, slot))
            b.commit(slot, "threads")
        storage.tell(bits)
        return []

    b.loop(0, query.blocks, [], block)
    for _ in range(problem.source.ahead):
        slot = storage.rows.acquire()
        b.store(b.fill([count], b.constant(NOWHERE)), slot)
        b.commit(slot, "threads")


def _words(problem: SparseProblem, slot: Value) -> Value:
    """The bits of a block, the last words of a slot."""
    (size,) = ws.TileType(slot.type).shape
    return b.rows(slot, size - problem.words, problem.words)


def load(
    problem: SparseProblem, storage: SparseStorage, source: WideRows, query: Query, *, part: int
) -> None:
    """Gathers a part of the rows of each tile of keys; the first part also moves Q in and O out."""
    if part == 0:
        _load_queries(problem, storage, query)
    count, work = problem.config.tile_n // LOADERS, SparseWork(problem, storage, query)

    def block(_: Value) -> list[Value]:
        slot = storage.rows.wait()
        is_seen, rows = work.any_counts(slot), b.rows(slot, part * count, count)
        keys = storage.keys.acquire()

        def row(place: Value) -> Value:
            return b.entry(rows, place)

        with b.when(is_seen):
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
    """What warps write of a block: a tile with some columns of the rows of some of its entries.

    Attributes:
      ring: of tiles of bf16.
      first: of the entries; those behind it fill the tile's rows.
      columns: of rows of the cache.
      shift: as of `NarrowRows.read`.
    """

    ring: b.Ring
    first: Value | int
    columns: range
    shift: Value | None = None


def widen(
    problem: SparseProblem,
    storage: Lists,
    source: NarrowRows,
    shares: Sequence[Share],
    query: Query,
) -> None:
    """Reads the rows of each block, one block ahead, and writes the tiles that they make.

    Of several tiles the rows of each are read when the same tile of the block before is written and
    has left its registers; a single one is read before that.
    """
    work, has_several = SparseWork(problem, storage, query), len(shares) > 1
    layouts = [share for share in shares for _ in range(source.layouts(share.columns))]

    def listed() -> list[Value]:
        """The rows of the next block, for each layout of each tile."""
        rows = storage.rows.wait()
        found = [_rows(rows, share) for share in layouts]
        b.release(rows, "threads")
        return found

    def read(share: Share, rows: Sequence[Value]) -> list[Value]:
        own = [row for other, row in zip(layouts, rows, strict=True) if other is share]
        return source.read(own, share.columns, share.shift)

    def write(share: Share, is_seen: Value, found: Sequence[Value]) -> None:
        slot = share.ring.acquire()
        with b.when(is_seen):
            source.widen(found, slot, share.columns)
        b.commit(slot, storage.agent)

    def block(_: Value, *before: Value) -> list[Value]:
        rows, is_seen, found = listed(), work.counts(), list[Value]()
        for share, begin, end in parts:
            if has_several:
                write(share, is_seen, before[begin:end])
            found += read(share, rows)
            if not has_several:
                write(share, is_seen, before[begin:end])
        return found

    rows = listed()
    first = [read(share, rows) for share in shares]
    ends = [*accumulate(map(len, first), initial=0)]
    parts = [*zip(shares, ends, ends[1:], strict=False)]
    b.loop(0, query.blocks, [*chain(*first)], block)


def _rows(rows: Value, share: Share) -> Value:
    """The rows of a tile, of those of a block."""
    (count, _) = ws.TileType(share.ring.tile).shape
    if count == ws.TileType(rows.type).shape[0]:
        return b.load(rows)

    def row(place: Value) -> Value:
        return b.entry(rows, b.INT.add(place, share.first))

    return b.generate(row, [count], b.i32())


def move_and_score(problem: SparseProblem, storage: SparseStorage, query: Query) -> None:
    """As `absorbed.score`, in one thread with the copies of Q before and of O after it."""
    _load_queries(problem, storage, query)
    absorbed.score(problem, storage, SparseWork(problem, storage, query))
    if problem.overlaps:
        b.launch_dependents()
    _store_result(problem, storage, query)


def _load_queries(problem: SparseProblem, storage: SparseStorage, query: Query) -> None:
    slot, heads = storage.q.acquire(), problem.tile_heads
    for first in range(0, problem.config.tile_m, heads):
        count = min(heads, problem.config.tile_m - first)
        part = b.rows(slot, first, count)
        dims = [len(query.place), len(query.place) + 1]
        b.copy_in(problem.q, part, [*query.place, query.head, 0], dims)
    b.commit(slot, "copy_engine")


def _store_result(problem: SparseProblem, storage: SparseStorage, query: Query) -> None:
    slot = storage.out.wait()
    part = b.rows(slot, 0, problem.tile_heads)
    dims = [len(query.result), len(query.result) + 1]
    b.copy_out(part, problem.o, [*query.result, query.head, 0], dims)
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
        """With the ring by which the role hears which blocks count,
        if that is not `storage.seen`.
        """
        self._problem, self._storage, self._query = problem, storage, query
        self._seen = seen or storage.seen
        self.count = query.blocks
        self.keeps_largest = problem.max_logits is not None or problem.ctas > 1

    def counts(self) -> Value:
        """Waits for the bits of a block; whether any of its entries counts."""
        seen = self._seen.wait()
        found = self.any_counts(seen)
        b.release(seen, "threads")
        return found

    def visit(
        self, ring: b.Ring, state: list[Value], turn_of: Callable[..., list[Value]]
    ) -> list[Value]:
        """One loop: scores are hidden by bits."""

        def block(_: Value, *state: Value) -> list[Value]:
            return turn_of(lambda: self._scores(ring), *state)

        return b.loop(0, self.count, state, block)

    def _scores(self, ring: b.Ring) -> tuple[Value, Value]:
        """The scores of a block. Of one in which no entry counts no product made them: they are
        written here, so that one load serves all blocks and no register is set before it."""
        seen, shape = self._seen.wait(), list(ws.TileType(ring.tile).shape)
        hidden, bits = b.f32_constant(-math.inf), _words(self._problem, seen)

        def word(row: Value, place: Value) -> Value:
            return b.entry(bits, self._storage.word(row, place))

        words = b.generate(word, [shape[0], shape[1] // WORD_BITS], b.i32())
        is_seen = self.any_counts(seen)
        b.release(seen, "threads")
        slot = ring.wait()
        with b.when(b.compare("eq", is_seen, b.false())):
            b.store(b.fill(shape, hidden), slot)
        scores = b.load(slot)
        b.release(slot, self._storage.agent)
        return b.keep(scores, words, hidden), is_seen

    def any_counts(self, seen: Value) -> Value:
        """Whether any entry counts of the block whose bits a slot has."""
        bits = _words(self._problem, seen)
        words = [b.entry(bits, b.constant(i)) for i in range(self._problem.words)]
        return b.compare("ne", functools.reduce(lambda x, y: arith.OrIOp(x, y).result, words), 0)

    def divisor(self, row: Row, maximum: Value, total: Value) -> Value:
        """l with the weight of each head's sink; a row without an entry that counts keeps its 0."""
        problem = self._problem
        if problem.sinks is None:
            return total

        def element(m: Value, t: Value, place: Value) -> Value:
            sink = problem.sink(self._query, place)
            zero = b.f32_constant(0.0)
            return b.select(b.fcompare("OEQ", t, zero), zero, b.fadd(t, row.of_logit(sink, m)))

        return b.map_rows(element, maximum, total)

    def leave(self, row: Row, maximum: Value, total: Value, largest: Value | None) -> None:
        """Writes what the operation has for each head."""
        self._problem.store_lines(self._query, row, maximum, total, largest)


def _is_row(row: Value) -> Value:
    return b.compare("sge", row, 0)
