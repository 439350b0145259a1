"""Sparse latent attention of 128 heads by a pair of CTAs, which share what they gather.

Each CTA has 64 heads, and of a block of 128 entries the keys of 64 and half of the columns of the
values of all: products of pairs read both halves. So a row is gathered once as key and once as value,
and no score or weight leaves the CTA of its head.

A tile of scores has each head twice, in rows h and 64 + h, with 64 entries each; O has it with 256
columns each. The two threads of a head tell each other maximum and sum in shared memory. Where Q lies
is said in `pair_queries`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.attn.sparse_mla import LATENT_COLUMNS
from attn_mlir.dialect.ws.compute import WORD_BITS
from attn_mlir.passes.target.limits import shared_tile_bytes

from . import builder as b
from .absorbed import attend, pieces
from .config import NARROW_BITS
from .latent_source import LOADERS, NarrowRows, WideRows
from .pair_queries import STRIP, SplitQueries, WholeQueries, heads_and_columns
from .sparse_problem import Query, SparseProblem
from .sparse_roles import Share, SparseWork, widen

Value = Any

BLOCKS_AHEAD = 2  # of entries; more of them have no room
MAX_CHUNK = 192  # columns of keys in a slot where they are chunks
KEY_HALVES = 2  # parts of a block's values, by entries
KEY_BYTES = 1 << 17  # of the slots of keys
KEY_ROWS = 64  # of a slot: half of a block


class PairStorage:
    """The rings and buffers of the kernel; what arrows mean is said in `SparseStorage`.

    ```
    find --rows--> keys0..3 --q,k--> score --s--> softmax --p--> sum_up
      |      '---> values0..3 ----tail--^-moved-'  |  ^ |          ^  ^
      |                 '----------------------v---)--)-)----------'  |
      '--seen--> (all)                             |  '-)--settled----'
    ```
    Keys come in chunks of columns and values in halves of entries, each with a slot of its own, so that
    a slot is filled again while the others are in use. The even CTA issues the products: bytes and
    handovers for them arrive there, and what they have read is free in both. It hears by `counted`
    which blocks have an entry that counts. `q`, `tail` and `moved` are those of `pair_queries`. A warp
    arrives for its threads, as every arrival at the other CTA is a message.

    Of 8 bits, Q has no tail, a slot of keys has all columns, and tensor memory has room for two tiles of
    scores. A slot of P has its halves, by entries, below one another, as its threads have the scores.
    """

    agent = "warps"

    def __init__(self, problem: SparseProblem):
        config, element = problem.config, problem.element
        f32, heads = ir.F32Type.get(), config.tile_m
        self.entries = config.tile_n // ws.PAIR  # of a block whose keys a CTA has
        self.slots = PairSlots.of(problem.head_dim, ws.element_bits(element))
        leader, pair = [(0,), (0,)], [(0, 1), (0, 1)]
        to_leader = partial(b.Ring, full_at=leader, empty_at=pair)
        to_pair = partial(b.Ring, full_at=pair, empty_at=leader)
        filled = partial(to_leader, producers=("copy_engine",) * problem.source.loaders)
        listed, words = (
            b.tile([count], b.i32(), "shared") for count in (config.tile_n, problem.words)
        )
        self.rows = b.Ring("rows", listed, stages=BLOCKS_AHEAD)
        self.seen = b.Ring("seen", words, stages=BLOCKS_AHEAD)
        self.counted = b.Ring("counted", words, stages=BLOCKS_AHEAD)
        chunk = self.slots.chunk
        self.q = (
            WholeQueries(problem, to_leader)
            if chunk == problem.head_dim
            else SplitQueries(problem, to_leader, chunk, pair)
        )
        self.k = filled(
            "k",
            b.tile([self.entries, chunk], element, "shared"),
            stages=config.kv_stages,
        )
        self.v = filled(
            "v",
            b.tile([config.tile_n // KEY_HALVES, LATENT_COLUMNS // ws.PAIR], element, "shared"),
            stages=self.slots.values,
        )
        rows = ws.PAIR * heads
        scores = b.tile([rows, self.entries], f32, "tensor")
        self.s = to_pair("s", scores, stages=self.slots.scores)
        self.p = to_leader("p", b.tile([rows, self.entries], element, "shared"))
        self.o = b.Buffer("o", b.tile([rows, LATENT_COLUMNS // ws.PAIR], f32, "tensor"))
        self.settled = to_pair("settled", None)
        strips = LATENT_COLUMNS // ws.PAIR // STRIP
        self.out = b.Ring("out", b.tile([rows, STRIP], problem.output, "shared"), stages=strips)
        self._told = b.Buffer("told", b.tile([rows], f32, "shared"))
        self._heads = heads

    def tell(self, words: Value) -> None:
        """As `SparseStorage.tell`; in the even CTA also to the roles that issue products."""
        self._pass_on(self.seen, words)
        with b.when(b.compare("eq", b.rank(), 0)):
            self._pass_on(self.counted, words)

    @staticmethod
    def _pass_on(ring: b.Ring, words: Value) -> None:
        slot = ring.acquire()
        b.store(words, slot)
        b.commit(slot, "threads")

    def word(self, row: Value, place: Value) -> Value:
        """As `SparseStorage.word`: rows below have the second half of the entries."""
        half = b.INT.floordiv(row, self._heads)
        return b.INT.add(b.INT.mul(half, self.entries // WORD_BITS), place)

    def across(self, combine: Callable[[Value, Value], Value], rows: Value) -> Value:
        """As `SparseStorage.across`: of the two rows of each head."""
        told = self._told.at()
        b.barrier()  # all have read what was told before
        b.store(rows, told)
        b.barrier()

        def both(own: Value, row: Value) -> Value:
            other = arith.XOrIOp(row, b.constant(self._heads)).result
            return combine(own, b.entry(told, other))

        return b.map_rows(both, rows)


class PairSlots(NamedTuple):
    """How many slots there is room for.

    Attributes:
      chunk: columns of keys in a slot, and of Q in shared memory.
      keys, values, scores: slots of each; of values half of a block's entries.
    """

    chunk: int
    keys: int
    values: int
    scores: int

    @classmethod
    def of(cls, head_dim: int, element_bits: int) -> "PairSlots":
        """Chunks are whole lines, as many as divide the columns of a row: of 192 columns, or 128.

        Of 8 bits a slot has a whole row, which is half as many bytes.
        """
        is_narrow = element_bits == NARROW_BITS
        lines = (c for c in range(MAX_CHUNK, 0, -STRIP) if head_dim % c == 0)
        chunk = head_dim if is_narrow else next(lines)
        keys = KEY_BYTES // shared_tile_bytes(KEY_ROWS, chunk, element_bits)
        return cls(chunk, keys, *((3, 2) if is_narrow else (KEY_HALVES, 1)))


def load_keys(
    problem: SparseProblem, storage: PairStorage, source: WideRows, query: Query, *, part: int
) -> None:
    """Gathers a part of this CTA's half of the keys; the first part also copies O out, and Q's first
    columns in."""
    if part == 0:
        storage.q.load_first(query)
    count = storage.entries // LOADERS
    first = b.INT.add(b.INT.mul(b.rank(), storage.entries), part * count)
    work = SparseWork(problem, storage, query)

    def block(_: Value) -> list[Value]:
        rows, is_seen = storage.rows.wait(), work.counts()
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
        _leave(problem, storage, query)


def _at(rows: Value, row: Value, first: Value | int) -> Value:
    return b.entry(rows, b.INT.add(row, first))


def _leave(problem: SparseProblem, storage: PairStorage, query: Query) -> None:
    """Copies O out, strip by strip: a strip has its columns of the first half, and of the second."""
    heads, half = problem.config.tile_m, LATENT_COLUMNS // ws.PAIR
    for column in range(0, half, STRIP):
        slot = storage.out.wait()
        if problem.overlaps and not column:
            b.launch_dependents()
        for number in range(ws.PAIR):
            place = [*query.result, query.head, number * half + column]
            part = b.rows(slot, number * heads, heads)
            b.copy_out(part, problem.o, place, heads_and_columns(query.result))
        b.release(slot, "copy_engine")


def load_values(
    problem: SparseProblem, storage: PairStorage, source: WideRows, query: Query, *, part: int
) -> None:
    """Gathers this CTA's half of the columns of a part of the values, once Q's other columns, which the
    first part copies in, are out of their place."""
    if part == 0:
        storage.q.load_others(query)
    storage.q.wait_until_settled("threads")
    entries = problem.config.tile_n // KEY_HALVES
    count = entries // LOADERS
    column, work = (
        b.INT.mul(b.rank(), LATENT_COLUMNS // ws.PAIR),
        SparseWork(problem, storage, query),
    )

    def block(_: Value) -> list[Value]:
        rows, is_seen = storage.rows.wait(), work.counts()
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


def move(problem: SparseProblem, storage: PairStorage, query: Query) -> None:
    """Copies Q in and O out, where warps fill the slots of keys and values."""
    storage.q.load_first(query)
    storage.q.load_others(query)
    _leave(problem, storage, query)


def widen_keys(
    problem: SparseProblem, storage: PairStorage, source: NarrowRows, query: Query
) -> None:
    """Reads this CTA's half of the keys, and writes them in chunks of columns."""
    first, chunk = b.INT.mul(b.rank(), storage.entries), storage.slots.chunk
    shares = [
        Share(storage.k, first, range(column, column + chunk))
        for column in range(0, problem.head_dim, chunk)
    ]
    widen(problem, storage, source, shares, query)


def widen_values(
    problem: SparseProblem, storage: PairStorage, source: NarrowRows, query: Query
) -> None:
    """Reads this CTA's half of the columns of the values, and writes them in halves of the entries, once
    Q's other columns are out of their place.

    What the columns hold is not the same in both CTAs, so each has its own code.
    """
    storage.q.wait_until_settled(storage.agent)
    count, width = problem.config.tile_n // KEY_HALVES, LATENT_COLUMNS // ws.PAIR
    with b.either(b.compare("eq", b.rank(), 0)) as branches:
        for rank, branch in enumerate(branches):
            columns = range(rank * width, (rank + 1) * width)
            shares = [Share(storage.v, half * count, columns) for half in range(KEY_HALVES)]
            with branch:
                widen(problem, storage, source, shares, query)


def score(problem: SparseProblem, storage: PairStorage, query: Query) -> None:
    """Issues S = Q K^T for both CTAs, chunk by chunk of the columns."""
    work = SparseWork(problem, storage, query)
    with storage.q.reading() as queries:

        def block(_: Value) -> list[Value]:
            is_seen, scores = work.counts(storage.counted), storage.s.acquire()
            for column in range(0, problem.head_dim, storage.slots.chunk):
                keys, more = storage.k.wait(), column > 0
                with b.when(is_seen):
                    part = queries(column)
                    b.mma(scores, part, keys, accumulate=more, b_layout="nk", ctas=ws.PAIR)
                b.release(keys, "tensor_core")
            b.commit(scores, "tensor_core")
            return []

        b.loop(0, query.blocks, [], block)


def sum_up(problem: SparseProblem, storage: PairStorage, query: Query) -> None:
    """Issues O += P V for both CTAs, by halves of the entries."""
    b.commit(storage.settled.acquire(), "tensor_core")
    heads, work = problem.config.tile_m, SparseWork(problem, storage, query)

    def block(_: Value, begun: Value) -> list[Value]:
        is_seen = work.counts(storage.counted)
        settled, weights = storage.settled.acquire(), storage.p.wait()
        for half in range(KEY_HALVES):
            values = storage.v.wait()
            more = True if half else begun
            with b.when(is_seen):
                part = b.rows(weights, half * heads, heads)
                b.mma(storage.o.at(), part, values, accumulate=more, b_layout="kn", ctas=ws.PAIR)
            b.release(values, "tensor_core")
        b.release(weights, "tensor_core")
        b.commit(settled, "tensor_core")
        return [b.INT.either(begun, is_seen)]

    b.loop(0, query.blocks, [b.false()], block)


def softmax(problem: SparseProblem, storage: PairStorage, query: Query) -> None:
    """As the softmax of one CTA; the result leaves strip by strip while the next one is made."""
    work = SparseWork(problem, storage, query)
    storage.q.settle(storage.agent)
    row, begun, maximum, total, inverse, largest = attend(problem, storage, work)
    settled = storage.settled.wait()
    sums = storage.o.at()
    for column in range(0, LATENT_COLUMNS // ws.PAIR, STRIP):
        slot = storage.out.acquire()
        parts = zip(pieces(b.columns(sums, column, STRIP)), pieces(slot), strict=True)
        for part, target in parts:
            shape = ws.TileType(part.type).shape
            kinds = [ws.fragment_type(shape, ir.F32Type.get())]
            (found,) = b.chosen(
                begun,
                kinds,
                lambda part=part: [b.times_rows(b.load(part), inverse)],
                lambda shape=shape: [b.fill(shape, b.f32_constant(0.0))],
            )
            b.store(b.rounded(found, problem.output), target)
        b.commit(slot, storage.agent)
    b.release(settled, storage.agent)
    work.leave(row, maximum, total, largest)
