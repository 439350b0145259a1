"""The compute roles of absorbed latent attention of 128 heads by a pair of CTAs; see `absorbed`.

Each CTA has 64 heads; of a block of 128 keys it has 64, and half of the columns of all values:
products of pairs read both halves. So a row is copied once as key and once as value, and scores and
weights stay in the CTA of their head. `sparse.pair` copies indexed rows, `decode.pair` whole
sequences.

A tile of scores has each head twice, in rows h and 64 + h, with 64 keys each; in O they have 256
columns each. The two threads of a head exchange maximum and sum in shared memory. `pair_queries`
has the storage of Q.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.attn.latent.columns import LATENT_COLUMNS
from attn_mlir.schedules import emit as b

from .absorbed import Absorbed, Work, column_chunks, either_begun, online_softmax, when_visible
from .pair_queries import CHUNK, Heads, SplitQueries, WholeQueries, heads_and_columns
from .policy import KEY_HALVES, PairSlots

Value = Any

VALUE_COLUMNS = LATENT_COLUMNS // ws.PAIR  # of a CTA


class PairStorage:
    """The rings and buffers of these roles; see `AbsorbedStorage`.

    ```
    load keys   --q,k--> score --s--> softmax --p--> sum_up
    load values ----tail--^-moved-'  |  ^ |          ^  ^
      |    '----------------------v--)--)-)----------'  |
      '--------                      |  '-)--settled----'
    ```
    A slot has a chunk of the columns of keys, or half of a block of values, so that slots are
    refilled while others are in use. The even CTA issues the products: bytes and arrivals for them
    go to its barriers, and their releases go to both CTAs. `q`, `tail` and `moved` are those of
    `pair_queries`. A warp arrives once for its threads, as every arrival at the other CTA is a
    message.

    With 8-bit elements, Q has no tail, a slot of keys has all columns, and tensor memory has two
    tiles of scores. A slot of P has its halves, by keys, below one another, like the scores.
    """

    agent = "warps"

    def __init__(self, problem: Absorbed, *, loaders: int = 1):
        """With `loaders` threads that copy parts of a slot; 0 if warps write it."""
        config, element, keys = problem.config, problem.element, problem.config.tile_n
        f32, heads = ir.F32Type.get(), config.tile_m
        self.cta_keys = keys // ws.PAIR  # of a block, in a CTA
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
        chunk = b.tile([self.cta_keys, columns], element, "shared")
        self.k = filled("k", chunk, stages=config.kv_stages)
        key_half = b.tile([keys // KEY_HALVES, VALUE_COLUMNS], element, "shared")
        self.v = filled("v", key_half, stages=self.slots.values)
        rows = ws.PAIR * heads
        scores = b.tile([rows, self.cta_keys], f32, "tensor")
        self.s = to_pair("s", scores, stages=self.slots.scores)
        self.p = to_leader("p", b.tile([rows, self.cta_keys], element, "shared"))
        self.o = b.Buffer("o", b.tile([rows, VALUE_COLUMNS], f32, "tensor"))
        self.settled = to_pair("settled", None)
        strips = VALUE_COLUMNS // CHUNK
        self.out = b.Ring("out", b.tile([rows, CHUNK], problem.output, "shared"), stages=strips)
        self._exchange = b.Buffer("exchange", b.tile([rows], f32, "shared"))
        self._heads = heads

    def key_half(self, row: Value) -> Value:
        """i32: the half of a block's keys that a row of scores has, 0 or 1."""
        return b.INT.floordiv(row, self._heads)

    def across(self, combine: Callable[[Value, Value], Value], rows: Value) -> Value:
        """As of `SoftmaxStorage`: over the two rows of each head."""
        exchanged = self._exchange.at()
        b.barrier()  # all have read the values of the last exchange
        b.store(rows, exchanged)
        b.barrier()

        def both(mine: Value, row: Value) -> Value:
            other = arith.XOrIOp(row, b.constant(self._heads)).result
            return combine(mine, b.entry(exchanged, other))

        return b.map_rows(both, rows)


def store_output(problem: Absorbed, storage: PairStorage, heads: Heads, *, overlaps: bool) -> None:
    """Stores O, chunk by chunk: a chunk has columns of the first half and of the second.

    Args:
      overlaps: whether the next kernel may be launched when the first chunk is staged.
    """
    count = problem.config.tile_m
    for column in range(0, VALUE_COLUMNS, CHUNK):
        slot = storage.out.wait()
        if overlaps and not column:
            b.launch_dependents()
        for number in range(ws.PAIR):
            coords = [*heads.o_coords, heads.head, number * VALUE_COLUMNS + column]
            part = b.rows(slot, number * count, count)
            b.copy_out(part, heads.o, coords, heads_and_columns(heads.o_coords))
        b.release(slot, "copy_engine")


def issue_qk(problem: Absorbed, storage: PairStorage, work: Work) -> None:
    """Issues S = Q K^T for both CTAs, by chunks of columns."""
    with storage.q.reading() as queries:

        def block(_: Value) -> list[Value]:
            counts, scores = work.any_visible(), storage.s.acquire()
            for column in range(0, problem.columns, storage.slots.chunk):
                keys, more = storage.k.wait(), column > 0
                with when_visible(counts):
                    part = queries(column)
                    b.mma(scores, part, keys, accumulate=more, b_layout="nk", ctas=ws.PAIR)
                b.release(keys, "tensor_core")
            b.commit(scores, "tensor_core")
            return []

        b.loop(0, work.count, [], block)


def issue_pv(problem: Absorbed, storage: PairStorage, work: Work) -> None:
    """Issues O += P V for both CTAs, by halves of a block."""
    b.commit(storage.settled.acquire(), "tensor_core")
    heads = problem.config.tile_m

    def block(_: Value, begun: Value) -> list[Value]:
        counts = work.any_visible()
        settled, weights = storage.settled.acquire(), storage.p.wait()
        for key_half in range(KEY_HALVES):
            values = storage.v.wait()
            more = True if key_half else begun
            with when_visible(counts):
                part = b.rows(weights, key_half * heads, heads)
                b.mma(storage.o.at(), part, values, accumulate=more, b_layout="kn", ctas=ws.PAIR)
            b.release(values, "tensor_core")
        b.release(weights, "tensor_core")
        b.commit(settled, "tensor_core")
        return [either_begun(begun, counts)]

    b.loop(0, work.count, [b.false()], block)


def softmax(problem: Absorbed, storage: PairStorage, work: Work) -> None:
    """As the softmax of one CTA; O is staged chunk by chunk, while earlier chunks are stored."""
    storage.q.copy_tail(storage.agent)
    row, begun, maximum, total, inverse, largest = online_softmax(problem, storage, work)
    settled = storage.settled.wait()
    accumulators = storage.o.at()
    for column in range(0, VALUE_COLUMNS, CHUNK):
        slot = storage.out.acquire()
        parts = zip(
            column_chunks(b.columns(accumulators, column, CHUNK)), column_chunks(slot), strict=True
        )
        for part, target in parts:
            shape = ws.TileType(part.type).shape
            kinds = [ws.fragment_type(shape, ir.F32Type.get())]
            (result,) = b.chosen(
                begun,
                kinds,
                lambda part=part: [b.times_rows(b.load(part), inverse)],
                lambda shape=shape: [b.fill(shape, b.f32_constant(0.0))],
            )
            b.store(b.rounded(result, problem.output), target)
        b.commit(slot, storage.agent)
    b.release(settled, storage.agent)
    work.store_statistics(row, maximum, total, largest)
