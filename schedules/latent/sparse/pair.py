"""Sparse latent attention of 128 heads by a pair of CTAs: roles that gather keys and values.

The compute roles are in `absorbed_pair`. From a block of 128 entries a CTA gathers the keys of 64,
and half of the columns of all values.
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect.ws.compute import WORD_BITS
from attn_mlir.schedules import emit as b

from ..common import absorbed_pair
from ..common.absorbed_pair import KEY_HALVES, VALUE_COLUMNS, PairStorage, store_output
from ..common.pair_queries import Heads
from ..common.rows import LOADERS, PlainRows, ScaledRows
from .problem import Query, SparseProblem, index_rings, numbers, send
from .roles import Share, SparseWork, upcast_rows

Value = Any

PREFETCHED_BLOCKS = 2  # of entries; more do not fit


class SparsePairStorage(PairStorage):
    """The rings and buffers of the kernel, including those of indices; see `SparseStorage`.

    ```
    find --rows--> keys0..3, values0..3
      |--rows or seen--> (all but score, sum_up)
      '--counted--> score, sum_up
    ```
    `counted` signals to the even CTA, which issues the products, which blocks have a visible entry.
    """

    def __init__(self, problem: SparseProblem, *, loaders: int | None = None):
        """As `PairStorage`, by default with the loaders of the rows' source."""
        self.rows, self.seen = index_rings(problem, PREFETCHED_BLOCKS)
        self.counted = b.Ring("counted", numbers(problem.words), stages=PREFETCHED_BLOCKS)
        super().__init__(problem, loaders=problem.source.loaders if loaders is None else loaders)

    def signal_visible(self, words: Value) -> None:
        """As of `SparseStorage`; in the even CTA also to the roles that issue products."""
        if self.seen is not self.rows:
            send(self.seen, words)
        with b.when(b.compare("eq", b.rank(), 0)):
            send(self.counted, words)

    def word(self, row: Value, number: Value) -> Value:
        """As `SparseStorage.word`: rows below have the second half of the entries."""
        return b.INT.add(b.INT.mul(self.key_half(row), self.cta_keys // WORD_BITS), number)


def load_keys(
    problem: SparseProblem,
    storage: SparsePairStorage,
    source: PlainRows,
    query: Query,
    *,
    part: int,
) -> None:
    """Gathers a part of this CTA's half of the keys; the first part also copies Q in and O out."""
    if part == 0:
        storage.q.load_first(_heads(problem, query))
    count = storage.cta_keys // LOADERS
    first = b.INT.add(b.INT.mul(b.rank(), storage.cta_keys), part * count)
    work = SparseWork(problem, storage, query)

    def block(_: Value) -> list[Value]:
        rows = storage.rows.wait()
        is_visible = work.any_visible_in(rows)
        for column in range(0, problem.head_dim, storage.slots.chunk):
            slot = storage.k.acquire()
            target = b.rows(slot, part * count, count)
            with b.when(is_visible):
                b.gather_in(source.tensor, target, [0, column], lambda row: _at(rows, row, first))
            b.commit(slot, "copy_engine")
        b.release(rows, "threads")
        return []

    b.loop(0, query.blocks, [], block)
    if part == 0:
        store_output(problem, storage, _heads(problem, query), overlaps=problem.overlaps)


def _at(rows: Value, row: Value, first: Value | int) -> Value:
    return b.entry(rows, b.INT.add(row, first))


def _heads(problem: SparseProblem, query: Query) -> Heads:
    return Heads(problem.q, problem.o, query.q_coords, query.o_coords, query.head)


def load_values(
    problem: SparseProblem,
    storage: SparsePairStorage,
    source: PlainRows,
    query: Query,
    *,
    part: int,
) -> None:
    """Gathers this CTA's half of the columns of a part of the values.

    Q's tail, which the first part copies in, goes through the same slots first.
    """
    if part == 0:
        storage.q.load_tail(_heads(problem, query))
    storage.q.wait_for_tail("threads")
    entries = problem.config.tile_n // KEY_HALVES
    count = entries // LOADERS
    column, work = b.INT.mul(b.rank(), VALUE_COLUMNS), SparseWork(problem, storage, query)

    def block(_: Value) -> list[Value]:
        rows = storage.rows.wait()
        is_visible = work.any_visible_in(rows)
        for half in range(KEY_HALVES):
            slot, first = storage.v.acquire(), half * entries + part * count
            target = b.rows(slot, part * count, count)
            with b.when(is_visible):
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
    """Copies Q in and O out, if warps fill the slots of keys and values."""
    heads = _heads(problem, query)
    storage.q.load_first(heads)
    storage.q.load_tail(heads)
    store_output(problem, storage, heads, overlaps=problem.overlaps)


def upcast_keys(
    problem: SparseProblem, storage: SparsePairStorage, source: ScaledRows, query: Query
) -> None:
    """Loads this CTA's half of the keys, and writes them upcast, in chunks of columns."""
    first, chunk = b.INT.mul(b.rank(), storage.cta_keys), storage.slots.chunk
    shares = [
        Share(storage.k, first, range(column, column + chunk))
        for column in range(0, problem.head_dim, chunk)
    ]
    upcast_rows(problem, storage, source, shares, query)


def upcast_values(
    problem: SparseProblem, storage: SparsePairStorage, source: ScaledRows, query: Query
) -> None:
    """Loads this CTA's half of the columns of the values, and writes them in halves of the entries.

    Q's tail goes through the same slots first. Each CTA has its own code if their columns are
    stored differently.
    """
    storage.q.wait_for_tail(storage.agent)
    count = problem.config.tile_n // KEY_HALVES
    if source.is_uniform(VALUE_COLUMNS, ws.PAIR):
        columns = range(VALUE_COLUMNS)
        shares = [Share(storage.v, half * count, columns, b.rank()) for half in range(KEY_HALVES)]
        upcast_rows(problem, storage, source, shares, query)
        return
    with b.either(b.compare("eq", b.rank(), 0)) as branches:
        for rank, branch in enumerate(branches):
            columns = range(rank * VALUE_COLUMNS, (rank + 1) * VALUE_COLUMNS)
            shares = [Share(storage.v, half * count, columns) for half in range(KEY_HALVES)]
            with branch:
                upcast_rows(problem, storage, source, shares, query)


def issue_qk(problem: SparseProblem, storage: SparsePairStorage, query: Query) -> None:
    """As `absorbed_pair.issue_qk`."""
    absorbed_pair.issue_qk(problem, storage, SparseWork(problem, storage, query, storage.counted))


def issue_pv(problem: SparseProblem, storage: SparsePairStorage, query: Query) -> None:
    """As `absorbed_pair.issue_pv`."""
    absorbed_pair.issue_pv(problem, storage, SparseWork(problem, storage, query, storage.counted))


def softmax(problem: SparseProblem, storage: SparsePairStorage, query: Query) -> None:
    """As `absorbed_pair.softmax`."""
    absorbed_pair.softmax(problem, storage, SparseWork(problem, storage, query))
