"""The roles of sparse latent attention, each for one query.

A row of a tile is a head; rows beyond the heads hold heads once more, and nobody writes what comes
of them.
"""

import functools
import math
from collections.abc import Callable

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith
from attn_mlir.dialect.attn.sparse_mla import LATENT_COLUMNS

from . import builder as b
from .online import Row
from .scores import Rows, reciprocal, weigh
from .sparse_problem import LOADERS, Query, SparseProblem, SparseStorage, Value

PIECE = 64  # columns of O in registers at a time: 32 registers of a thread
NOWHERE = -1  # a row that no cache has


def find(problem: SparseProblem, storage: SparseStorage, query: Query) -> None:
    """Reads the list of the query; an entry that does not count becomes a row that no cache has.

    Nothing reads a row of the cache that is masked, then: it may hold NaN, which a weight of 0 does
    not take away.
    """
    count = problem.config.tile_n
    row_of = rows_of(problem, query)

    def block(number: Value) -> list[Value]:
        first = b.INT.mul(number, count)

        def kept(entry: Value, place: Value) -> Value:
            row, exists = row_of(entry)
            counts = b.compare("slt", b.INT.add(first, place), query.entries)
            return b.select(b.INT.both(exists, counts), row, b.constant(NOWHERE))

        entries = b.load_global(problem.indices, [count], [query.number, first], [1])
        found = b.map_rows(kept, entries)
        slot = storage.rows.acquire()
        b.store(found, slot)
        b.commit(slot, "threads")
        slot = storage.seen.acquire()
        b.store(b.bits(b.map_elements(_is_row, found, element=b.i1())), slot)
        b.commit(slot, "threads")
        return []

    b.loop(0, query.blocks, [], block)


def rows_of(problem: SparseProblem, query: Query) -> Callable[[Value], tuple[Value, Value]]:
    """Of an entry the row of the cache, and whether there is one, i1, whatever the entry is."""
    rows, table = b.extent(problem.kv, 0), problem.page_table
    if table is None:
        return lambda entry: (entry, _is_below(entry, rows))
    page = problem.page_size
    sequence = b.element(problem.batch_of_query, [query.number])
    is_sequence = _is_below(sequence, b.extent(table, 0))
    pages = b.INT.floordiv(rows, page)

    def row_of(position: Value) -> tuple[Value, Value]:
        column = arith.DivUIOp(position, b.constant(page)).result
        number = b.element(table, [sequence, column])
        inside = b.INT.both(_is_below(column, b.extent(table, 1)), _is_below(number, pages))
        exists = b.INT.both(b.compare("sge", position, 0), b.INT.both(is_sequence, inside))
        rest = b.INT.sub(position, b.INT.mul(column, page))
        return b.INT.add(b.INT.mul(number, page), rest), exists

    return row_of


def _is_below(number: Value, end: Value) -> Value:
    """Whether a number lies from 0 to before an end, which is not negative."""
    return b.compare("ult", number, end)


def load(problem: SparseProblem, storage: SparseStorage, query: Query, part: int) -> None:
    """Gathers a part of the rows of each tile of keys; the first part also moves Q in and O out."""
    if part == 0:
        _load_queries(problem, storage, query)
    count = problem.config.tile_n // LOADERS

    def block(_: Value) -> list[Value]:
        rows, is_seen = storage.rows.wait(), _is_seen(problem, storage)
        keys, first = storage.keys.acquire(), part * count

        def row(place: Value) -> Value:
            return b.entry(rows, b.INT.add(place, first))

        with b.when(is_seen):
            b.gather_in(problem.kv, b.rows(keys, first, count), [0, 0], row)
        b.commit(keys, "copy_engine")
        b.release(rows, "threads")
        return []

    b.loop(0, query.blocks, [], block)
    if part == 0:
        _store_result(problem, storage, query)


def _load_queries(problem: SparseProblem, storage: SparseStorage, query: Query) -> None:
    slot, heads = storage.q.acquire(), problem.tile_heads
    for first in range(0, problem.config.tile_m, heads):
        count = min(heads, problem.config.tile_m - first)
        part = b.rows(slot, first, count)
        b.copy_in(problem.q, part, [query.number, query.head, 0], [1, 2])
    b.commit(slot, "copy_engine")


def _store_result(problem: SparseProblem, storage: SparseStorage, query: Query) -> None:
    slot = storage.out.wait()
    part = b.rows(slot, 0, problem.tile_heads)
    b.copy_out(part, problem.o, [query.number, query.head, 0], [1, 2])
    b.release(slot, "copy_engine")


def score(problem: SparseProblem, storage: SparseStorage, query: Query) -> None:
    """Issues S = Q K^T, block by block, as far ahead of the softmax as there is room for S."""
    queries, unread = storage.q.wait(), storage.unread.acquire()

    def block(_: Value) -> list[Value]:
        is_seen = _is_seen(problem, storage)
        keys, scores = storage.keys.wait(), storage.s.acquire()
        with b.when(is_seen):
            b.mma(scores, queries, keys, accumulate=False, b_layout="nk")
        b.commit(scores, "tensor_core")
        b.release(keys, "tensor_core")
        return []

    b.loop(0, query.blocks, [], block)
    b.release(queries, "tensor_core")
    b.commit(unread, "tensor_core")


def sum_up(problem: SparseProblem, storage: SparseStorage, query: Query) -> None:
    """Issues O += P V, block by block, V being the first columns of the keys."""
    b.commit(storage.settled.acquire(), "tensor_core")

    def block(_: Value, begun: Value) -> list[Value]:
        is_seen = _is_seen(problem, storage)
        keys, settled = storage.keys.wait(), storage.settled.acquire()
        weights = storage.p.wait()
        values = b.view(keys, [problem.config.tile_n, LATENT_COLUMNS], problem.element)
        with b.when(is_seen):
            b.mma(storage.o.at(), weights, values, accumulate=begun, b_layout="kn")
        for read in (weights, keys):
            b.release(read, "tensor_core")
        b.commit(settled, "tensor_core")
        return [arith.OrIOp(begun, is_seen).result]

    b.loop(0, query.blocks, [b.false()], block)


def softmax(problem: SparseProblem, storage: SparseStorage, query: Query) -> None:
    """Turns S into P, keeps O in step with the maximum, and writes the results of the query."""
    config = problem.config
    row = Row.scaled(problem.scale, config.rescale_threshold)

    shape = [config.tile_m, config.tile_n]
    hidden = b.f32_constant(-math.inf)

    def block(_: Value, begun: Value, highest: Value, *known: Value) -> list[Value]:
        seen = storage.seen.wait()

        def word(_: Value, place: Value) -> Value:
            return b.entry(seen, place)

        words = b.generate(word, [config.tile_m, problem.words], b.i32())
        is_seen = _any_bit(problem, seen)
        b.release(seen, "threads")
        slot = storage.s.wait()
        (scores,) = b.chosen(
            is_seen,
            [ws.fragment_type(shape, hidden.type)],
            lambda: [b.load(slot)],
            lambda: [b.fill(shape, hidden)],
        )
        b.release(slot, "threads")
        scores = b.keep(scores, words, hidden)
        highest = b.reduce_rows("max", scores, highest)
        rows, moved, factor, weights = weigh(problem, row, scores, Rows(*known), highest)
        settled = storage.settled.wait()
        with b.when(arith.AndIOp(moved, begun).result):
            for part in _pieces(storage.o.at()):
                b.store(b.times_rows(b.load(part), factor), part)
        b.release(settled, "threads")
        slot = storage.p.acquire()
        b.store(b.rounded(weights, problem.element), slot)
        b.commit(slot, "threads")
        return [arith.OrIOp(begun, is_seen).result, highest, *rows]

    highest = b.fill([config.tile_m], hidden)
    state = [b.false(), highest, *Rows.none(row, config.tile_m)]
    begun, highest, *known = b.loop(0, query.blocks, state, block)
    rows = Rows(*known)
    total = rows.total()
    inverse = b.map_elements(
        lambda t: reciprocal(t, None), _with_sink(problem, query, row, rows.maximum, total)
    )
    settled = storage.settled.wait()
    b.release(storage.unread.wait(), "threads")
    slot = storage.out.acquire()
    with b.either(begun) as (some, none):
        with some:
            for part, target in zip(_pieces(storage.o.at()), _pieces(slot), strict=True):
                b.store(b.rounded(b.times_rows(b.load(part), inverse), problem.element), target)
        with none:
            nothing = b.fill([config.tile_m, PIECE], b.f32_constant(0.0))
            for target in _pieces(slot):
                b.store(b.rounded(nothing, problem.element), target)
    b.release(settled, "threads")
    b.commit(slot, "threads")
    place = [query.number, query.head]
    lse = b.map_elements(row.lse, rows.maximum, total)
    b.store_global(lse, problem.lse, place, [1])
    logits = b.map_elements(lambda s: b.fmul(s, problem.scale), highest)
    b.store_global(logits, problem.max_logits, place, [1])


def _is_seen(problem: SparseProblem, storage: SparseStorage) -> Value:
    """Waits for the bits of a block; whether any of its entries counts."""
    seen = storage.seen.wait()
    found = _any_bit(problem, seen)
    b.release(seen, "threads")
    return found


def _any_bit(problem: SparseProblem, seen: Value) -> Value:
    words = [b.entry(seen, b.constant(i)) for i in range(problem.words)]
    return b.compare("ne", functools.reduce(lambda x, y: arith.OrIOp(x, y).result, words), 0)


def _is_row(row: Value) -> Value:
    return b.compare("sge", row, 0)


def _with_sink(
    problem: SparseProblem, query: Query, row: Row, maximum: Value, total: Value
) -> Value:
    """l with the weight of each head's sink; a row without an entry that counts keeps its 0."""
    if problem.sinks is None:
        return total

    def element(m: Value, t: Value, place: Value) -> Value:
        sink = b.element(problem.sinks, [b.INT.add(query.head, place)])
        zero = b.f32_constant(0.0)
        return b.select(b.fcompare("OEQ", t, zero), zero, b.fadd(t, row.of_logit(sink, m)))

    return b.map_rows(element, maximum, total)


def _pieces(tile: Value) -> list[Value]:
    return [b.columns(tile, c, PIECE) for c in range(0, LATENT_COLUMNS, PIECE)]
