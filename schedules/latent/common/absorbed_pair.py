"""The roles of absorbed latent attention that multiply, for 128 heads by a pair of CTAs; see
`absorbed`.

Each CTA has 64 heads, and of a block of 128 keys 64, and half of the columns of the values of all:
products of pairs read both halves. So a row is copied once as key and once as value, and no score
or weight leaves the CTA of its head. Who copies rows, and which of them count, is said elsewhere:
`sparse_pair` has rows that lists name, `walked_pair` those of whole sequences.

A tile of scores has each head twice, in rows h and 64 + h, with 64 keys each; O has it with 256
columns each. The two threads of a head tell each other maximum and sum in shared memory. Where Q
lies is said in `pair_queries`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.attn.latent import LATENT_COLUMNS
from attn_mlir.schedules import emit as b

from .absorbed import Absorbed, Work, attend, either_begun, pieces, where
from .pair_queries import STRIP, Heads, SplitQueries, WholeQueries, heads_and_columns
from .policy import KEY_HALVES, PairSlots

Value = Any

VALUE_COLUMNS = LATENT_COLUMNS // ws.PAIR  # that a CTA has


class PairStorage:
    """The rings and buffers of these roles; what arrows mean is said in `AbsorbedStorage`.

    ```
    load keys   --q,k--> score --s--> softmax --p--> sum_up
    load values ----tail--^-moved-'  |  ^ |          ^  ^
      |    '----------------------v--)--)-)----------'  |
      '--------                      |  '-)--settled----'
    ```
    Keys come in chunks of columns and values in halves of a block, each with a slot of its own, so
    that a slot is filled again while the others are in use. The even CTA issues the products: bytes
    and handovers for them arrive there, and what they have read is free in both. `q`, `tail` and
    `moved` are those of `pair_queries`. A warp arrives for its threads, as every arrival at the
    other CTA is a message.

    Of 8 bits, Q has no tail, a slot of keys has all columns, and tensor memory has room for two
    tiles of scores. A slot of P has its halves, by keys, below one another, as its threads have the
    scores.
    """

    agent = "warps"

    def __init__(self, problem: Absorbed, *, loaders: int = 1):
        """With so many threads that copy parts of a slot of keys or values;
        0 where warps write it.
        """
        config, element, keys = problem.config, problem.element, problem.config.tile_n
        f32, heads = ir.F32Type.get(), config.tile_m
        self.own_keys = keys // ws.PAIR  # of a block that a CTA has
        self.slots = PairSlots.of(problem.columns, ws.element_bits(element))
        leader, pair = [(0,), (0,)], [(0, 1), (0, 1)]
        to_leader = partial(b.Ring, full_at=leader, empty_at=pair)
        to_pair = partial(b.Ring, full_at=pair, empty_at=leader)
        filled = partial(to_leader, producers=("copy_engine",) * loaders)
        columns = self.slots.chunk
        self.q = (
            WholeQueries(problem, to_leader)
            if columns == problem.columns
            else SplitQueries(problem, to_leader, columns, pair)
        )
        chunk = b.tile([self.own_keys, columns], element, "shared")
        self.k = filled("k", chunk, stages=config.kv_stages)
        half = b.tile([keys // KEY_HALVES, VALUE_COLUMNS], element, "shared")
        self.v = filled("v", half, stages=self.slots.values)
        rows = ws.PAIR * heads
        scores = b.tile([rows, self.own_keys], f32, "tensor")
        self.s = to_pair("s", scores, stages=self.slots.scores)
        self.p = to_leader("p", b.tile([rows, self.own_keys], element, "shared"))
        self.o = b.Buffer("o", b.tile([rows, VALUE_COLUMNS], f32, "tensor"))
        self.settled = to_pair("settled", None)
        strips = VALUE_COLUMNS // STRIP
        self.out = b.Ring("out", b.tile([rows, STRIP], problem.output, "shared"), stages=strips)
        self._told = b.Buffer("told", b.tile([rows], f32, "shared"))
        self._heads = heads

    def half(self, row: Value) -> Value:
        """Which half of a block's keys a row of scores has, i32."""
        return b.INT.floordiv(row, self._heads)

    def across(self, combine: Callable[[Value, Value], Value], rows: Value) -> Value:
        """As `Softened.across`: of the two rows of each head."""
        told = self._told.at()
        b.barrier()  # all have read what was told before
        b.store(rows, told)
        b.barrier()

        def both(own: Value, row: Value) -> Value:
            other = arith.XOrIOp(row, b.constant(self._heads)).result
            return combine(own, b.entry(told, other))

        return b.map_rows(both, rows)


def leave(problem: Absorbed, storage: PairStorage, heads: Heads, *, overlaps: bool) -> None:
    """Copies O out, strip by strip: a strip has its columns of the first half, and of the second.

    Args:
      overlaps: whether the next kernel may be launched when the first strip is staged.
    """
    count = problem.config.tile_m
    for column in range(0, VALUE_COLUMNS, STRIP):
        slot = storage.out.wait()
        if overlaps and not column:
            b.launch_dependents()
        for number in range(ws.PAIR):
            place = [*heads.result, heads.head, number * VALUE_COLUMNS + column]
            part = b.rows(slot, number * count, count)
            b.copy_out(part, heads.o, place, heads_and_columns(heads.result))
        b.release(slot, "copy_engine")


def score(problem: Absorbed, storage: PairStorage, work: Work) -> None:
    """Issues S = Q K^T for both CTAs, chunk by chunk of the columns."""
    with storage.q.reading() as queries:

        def block(_: Value) -> list[Value]:
            counts, scores = work.counts(), storage.s.acquire()
            for column in range(0, problem.columns, storage.slots.chunk):
                keys, more = storage.k.wait(), column > 0
                with where(counts):
                    part = queries(column)
                    b.mma(scores, part, keys, accumulate=more, b_layout="nk", ctas=ws.PAIR)
                b.release(keys, "tensor_core")
            b.commit(scores, "tensor_core")
            return []

        b.loop(0, work.count, [], block)


def sum_up(problem: Absorbed, storage: PairStorage, work: Work) -> None:
    """Issues O += P V for both CTAs, by halves of a block."""
    b.commit(storage.settled.acquire(), "tensor_core")
    heads = problem.config.tile_m

    def block(_: Value, begun: Value) -> list[Value]:
        counts = work.counts()
        settled, weights = storage.settled.acquire(), storage.p.wait()
        for half in range(KEY_HALVES):
            values = storage.v.wait()
            more = True if half else begun
            with where(counts):
                part = b.rows(weights, half * heads, heads)
                b.mma(storage.o.at(), part, values, accumulate=more, b_layout="kn", ctas=ws.PAIR)
            b.release(values, "tensor_core")
        b.release(weights, "tensor_core")
        b.commit(settled, "tensor_core")
        return [either_begun(begun, counts)]

    b.loop(0, work.count, [b.false()], block)


def softmax(problem: Absorbed, storage: PairStorage, work: Work) -> None:
    """As the softmax of one CTA; the result leaves strip by strip while the next one is made."""
    storage.q.settle(storage.agent)
    row, begun, maximum, total, inverse, largest = attend(problem, storage, work)
    settled = storage.settled.wait()
    sums = storage.o.at()
    for column in range(0, VALUE_COLUMNS, STRIP):
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
