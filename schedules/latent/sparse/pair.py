"""Sparse latent attention of 128 heads by a pair of CTAs: how keys are found and gathered.

What multiplies is in `absorbed_pair`. Of a block of 128 entries a CTA gathers the keys of 64, and
half of the columns of the values of all.
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect.ws.compute import WORD_BITS
from attn_mlir.schedules import emit as b

from ..common import absorbed_pair
from ..common.absorbed_pair import KEY_HALVES, VALUE_COLUMNS, PairStorage, leave
from ..common.pair_queries import Heads
from ..common.rows import LOADERS, NarrowRows, WideRows
from .problem import Query, SparseProblem, found_rings, numbers, pass_on
from .roles import Share, SparseWork, widen

Value = Any

BLOCKS_AHEAD = 2  # of entries; more of them have no room


class SparsePairStorage(PairStorage):
    """The rings and buffers of the kernel, with those by which keys are found; see `SparseStorage`.

    ```
    find --rows--> keys0..3, values0..3
      |--rows or seen--> (all but score, sum_up)
      '--counted--> score, sum_up
    ```
    The even CTA, which issues the products, hears by `counted` which blocks have an entry that
    counts.
    """

    def __init__(self, problem: SparseProblem, *, loaders: int | None = None):
        """As `PairStorage`, by default with as many loaders as the rows' source asks for."""
        self.rows, self.seen = found_rings(problem, BLOCKS_AHEAD)
        self.counted = b.Ring("counted", numbers(problem.words), stages=BLOCKS_AHEAD)
        super().__init__(problem, loaders=problem.source.loaders if loaders is None else loaders)

    def tell(self, words: Value) -> None:
        """As `SparseStorage.tell`; in the even CTA also to the roles that issue products."""
        if self.seen is not self.rows:
            pass_on(self.seen, words)
        with b.when(b.compare("eq", b.rank(), 0)):
            pass_on(self.counted, words)

    def word(self, row: Value, place: Value) -> Value:
        """As `SparseStorage.word`: rows below have the second half of the entries."""
        return b.INT.add(b.INT.mul(self.half(row), self.own_keys // WORD_BITS), place)


def load_keys(
    problem: SparseProblem,
    storage: SparsePairStorage,
    source: WideRows,
    query: Query,
    *,
    part: int,
) -> None:
    """Gathers a part of this CTA's half of the keys; the first part also copies O out, and Q's
    first columns in."""
    if part == 0:
        storage.q.load_first(_heads(problem, query))
    count = storage.own_keys // LOADERS
    first = b.INT.add(b.INT.mul(b.rank(), storage.own_keys), part * count)
    work = SparseWork(problem, storage, query)

    def block(_: Value) -> list[Value]:
        rows = storage.rows.wait()
        is_seen = work.any_counts(rows)
        for column in range(0, problem.head_dim, storage.slots.chunk):
            slot = storage.k.acquire()
            target = b.rows(slot, part * count, count)
            with b.when(is_seen):
                b.gather_in(source.tensor, target, [0, column], lambda row: _at(rows, row, first))
            b.commit(slot, "copy_engine")
        b.release(rows, "threads")
        return []

    b.loop(0, query.blocks, [], block)
    if part == 0:
        leave(problem, storage, _heads(problem, query), overlaps=problem.overlaps)


def _at(rows: Value, row: Value, first: Value | int) -> Value:
    return b.entry(rows, b.INT.add(row, first))


def _heads(problem: SparseProblem, query: Query) -> Heads:
    return Heads(problem.q, problem.o, query.place, query.result, query.head)


def load_values(
    problem: SparseProblem,
    storage: SparsePairStorage,
    source: WideRows,
    query: Query,
    *,
    part: int,
) -> None:
    """Gathers this CTA's half of the columns of a part of the values, once Q's other columns, which
    the first part copies in, are out of their place."""
    if part == 0:
        storage.q.load_others(_heads(problem, query))
    storage.q.wait_until_settled("threads")
    entries = problem.config.tile_n // KEY_HALVES
    count = entries // LOADERS
    column, work = b.INT.mul(b.rank(), VALUE_COLUMNS), SparseWork(problem, storage, query)

    def block(_: Value) -> list[Value]:
        rows = storage.rows.wait()
        is_seen = work.any_counts(rows)
        for half in range(KEY_HALVES):
            slot, first = storage.v.acquire(), half * entries + part * count
            target = b.rows(slot, part * count, count)
            with b.when(is_seen):
                b.gather_in(
                    source.tensor,
                    target,
                    [0, column],
                    lambda row, first=first: _at(rows, row, first),
                )
            b.commit(slot, "copy_engine")
        b.release(rows, "threads")
        return []

    b.loop(0, query.blocks, [], block)


def move(problem: SparseProblem, storage: SparsePairStorage, query: Query) -> None:
    """Copies Q in and O out, where warps fill the slots of keys and values."""
    heads = _heads(problem, query)
    storage.q.load_first(heads)
    storage.q.load_others(heads)
    leave(problem, storage, heads, overlaps=problem.overlaps)


def widen_keys(
    problem: SparseProblem, storage: SparsePairStorage, source: NarrowRows, query: Query
) -> None:
    """Reads this CTA's half of the keys, and writes them in chunks of columns."""
    first, chunk = b.INT.mul(b.rank(), storage.own_keys), storage.slots.chunk
    shares = [
        Share(storage.k, first, range(column, column + chunk))
        for column in range(0, problem.head_dim, chunk)
    ]
    widen(problem, storage, source, shares, query)


def widen_values(
    problem: SparseProblem, storage: SparsePairStorage, source: NarrowRows, query: Query
) -> None:
    """Reads this CTA's half of the columns of the values, and writes them in halves of the entries,
    once Q's other columns are out of their place.

    Where the columns do not hold the same in both CTAs, each has its own code.
    """
    storage.q.wait_until_settled(storage.agent)
    count = problem.config.tile_n // KEY_HALVES
    if source.is_alike(VALUE_COLUMNS, ws.PAIR):
        columns = range(VALUE_COLUMNS)
        shares = [Share(storage.v, half * count, columns, b.rank()) for half in range(KEY_HALVES)]
        widen(problem, storage, source, shares, query)
        return
    with b.either(b.compare("eq", b.rank(), 0)) as branches:
        for rank, branch in enumerate(branches):
            columns = range(rank * VALUE_COLUMNS, (rank + 1) * VALUE_COLUMNS)
            shares = [Share(storage.v, half * count, columns) for half in range(KEY_HALVES)]
            with branch:
                widen(problem, storage, source, shares, query)


def score(problem: SparseProblem, storage: SparsePairStorage, query: Query) -> None:
    """As `absorbed_pair.score`."""
    absorbed_pair.score(problem, storage, SparseWork(problem, storage, query, storage.counted))


def sum_up(problem: SparseProblem, storage: SparsePairStorage, query: Query) -> None:
    """As `absorbed_pair.sum_up`."""
    absorbed_pair.sum_up(problem, storage, SparseWork(problem, storage, query, storage.counted))


def softmax(problem: SparseProblem, storage: SparsePairStorage, query: Query) -> None:
    """As `absorbed_pair.softmax`."""
    absorbed_pair.softmax(problem, storage, SparseWork(problem, storage, query))
