"""Absorbed latent attention of 64 rows by two groups of threads that take blocks of keys in turn.

O has 512 columns, which are twice what a group has registers for. So each group holds half of them, for
all blocks, and finds the weights of every other block, which it uses itself and hands to the other one.

```text
move --q,keys--> even --p,told--> odd        O's columns 0-255, and 256-511; blocks 0, 2, .. and 1, 3, ..
  ^               | ^---p,told-----|
  '------out------'------out-------'
```
A block of keys is one of values as well. It comes in chunks of columns, each with slots of its own: scores begin
with the first that is there, and each is free again when who uses its values has done so. Behind the values in the last
one lie columns that scores alone need, and there the weights are stored.

A turn of a group: the values of the other one's block, n - 1, and all of its own one, n.

```text
take the maxima of n - 1; O to them, where they moved
even: O += P(n-1) V(n-1)   S(n) = Q K(n)^T   settle both     mask, maxima, weights of n
odd:  S(n) = Q K(n)^T   O += P(n-1) V(n-1)   settle S(n)     mask, maxima, weights of n    settle O
hand over the maxima, as soon as they are known; O to them, where they moved
store P(n), rounded; issue O += P(n) V(n), P from registers; hand over P(n)    settle O
```
So the tensor core has S(n + 1) of `odd` while `even` computes weights, and both values of block n while `odd` does.
"""

from collections.abc import Sequence
from typing import NamedTuple

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn.latent import LATENT_COLUMNS

from . import builder as b
from .found_ahead import each_turn
from .masking import Test
from .online import Row
from .problem import Problem, Value, WorkTile
from .row_boxes import RowBoxes
from .scores import (
    ROW_VALUES,
    Rows,
    Weighed,
    raised,
    reciprocal,
    seen,
    store_lse,
    weighed_at,
    with_sink,
)
from .streaming import load_queries
from .visited import EveryOther, visit

HALF = LATENT_COLUMNS // 2  # columns of O in a group: 128 registers of each thread
CHUNK = 128  # columns of a slot of keys
GROUPS = ("even", "odd")
Block = list[Value]  # the slots of a block of keys, of each chunk


class Chunk(NamedTuple):
    """Some columns of all blocks of keys.

    Attributes:
      ring: of their slots; that of the last chunk has room for P behind them.
      first, count: which columns.
      group: whose values are among them.
    """

    ring: b.Ring
    first: int
    count: int
    group: int

    @property
    def values(self) -> int:
        """How many columns are of values: the first ones."""
        return min(self.count, LATENT_COLUMNS - self.first)


class AlternatingStorage:
    """The rings of the kernel.

    Attributes:
      chunks: of blocks of keys.
      told: of each group, the row maxima of its blocks, in the end its row sums.
      p: of each group, tokens for the weights in a block's last slot.
      out: where O is staged, which both groups fill; None for parts of the keys, whose O in f32 goes to
        memory from registers.
    """

    def __init__(self, problem: Problem):
        config, element, f32 = problem.config, problem.element, ir.F32Type.get()
        rows, keys = config.tile_m, config.tile_n
        self.q = b.Ring("q", b.tile([rows, problem.columns], element, "shared"))
        self.chunks: list[Chunk] = []
        for first in range(0, LATENT_COLUMNS, CHUNK):
            is_last = first + CHUNK == LATENT_COLUMNS
            count = problem.columns - first if is_last else CHUNK
            kind = b.tile([keys, CHUNK + keys if is_last else CHUNK], element, "shared")
            ring = b.Ring(f"keys_{first}", kind, stages=config.kv_stages)
            self.chunks.append(Chunk(ring, first, count, first // HALF))
        told = b.tile([rows], f32, "shared")
        self.told = [b.Ring(f"told_{name}", told) for name in GROUPS]
        self.p = [b.Ring(f"p_{name}", None) for name in GROUPS]
        self.out: b.Ring | None = None
        if not problem.is_partial:
            out = b.tile([rows, LATENT_COLUMNS], problem.output, "shared")
            self.out = b.Ring("out", out, producers=("warps", "warps"))


def load_chunks(
    problem: Problem, storage: AlternatingStorage, boxes: RowBoxes, tile: WorkTile
) -> None:
    """Fills Q once, then the chunks of each block; one thread."""
    visited = problem.key_tiles(tile)

    def fill(turn: Value | int, found: Sequence[Value], *, is_whole: bool) -> None:
        key = visited.first_column(turn)
        for chunk in storage.chunks:
            slot = chunk.ring.acquire()
            part = b.columns(slot, 0, chunk.count)
            boxes.load(part, tile, key, chunk.first, found, ends=not is_whole)
            b.commit(slot, "copy_engine")

    each_turn(
        visited,
        (lambda turn: boxes.find(tile, visited.first_column(turn))) if boxes.reads else None,
        fill,
        lambda: load_queries(problem, storage, tile),
    )


def attend(problem: Problem, storage: AlternatingStorage, tile: WorkTile, number: int) -> None:
    """Weights of every other block, half of O; the LSE by the first group."""
    group = _Group(problem, storage, tile, number)
    rows, sums = group.all_blocks()
    maximum, total = rows.maximum, rows.total()
    _hand_over(storage.told[number], total)
    total = b.map_elements(b.fadd, total, _taken(storage.told[1 - number]))
    divisor = with_sink(problem, group.row, tile, group.row0, maximum, total)
    inverse = b.map_elements(lambda t: reciprocal(t, None), divisor)
    b.barrier()  # nobody of the group reads Q any more, in whose place O may be staged
    group.leave([b.times_rows(x, inverse) for x in sums])
    if number == 0:
        store_lse(problem, group.row, tile, group.row0, maximum, total)


class _Group:
    """The turns of a group for one work tile; its state is (*rows, *O), O by chunks."""

    def __init__(self, problem: Problem, storage: AlternatingStorage, tile: WorkTile, number: int):
        self._problem, self._storage, self._tile, self._number = problem, storage, tile, number
        every = problem.key_tiles(tile)
        self._visited, self._theirs = (EveryOther(every, n) for n in (number, 1 - number))
        self._own = [n for n, chunk in enumerate(storage.chunks) if chunk.group == number]
        self._others = [n for n, chunk in enumerate(storage.chunks) if chunk.group != number]
        self.row = Row.of(problem, problem.scale)
        self.row0 = problem.first_position(tile, 0)

    def all_blocks(self) -> tuple[Rows, Sequence[Value]]:
        """Rows and O of all blocks.

        The first block of all has none before it, and the last one may have none behind it.
        """
        count, own, first = self._problem.config.tile_m, self._visited.count, b.constant(0)
        self._queries = self._storage.q.wait()
        zero = b.f32_constant(0.0)
        empty = [b.fill([count, self._storage.chunks[n].values], zero) for n in self._own]
        state = [*Rows.none(self.row, count), *empty]
        if self._number == 0:
            first = b.INT.min(own, 1)
            state = b.loop(0, first, state, self._first_turn)
        phases = self._visited.phases(b.constant(0))
        state = visit(self._visited, phases, state, self._turn, first=first)
        state = b.loop(b.INT.sub(own, first), self._theirs.count, state, self._last_turn)
        b.release(self._queries, "warps")
        return _split(state)

    def leave(self, result: Sequence[Value]) -> None:
        """Half of the columns of O of the work tile."""
        problem, out = self._problem, self._storage.out
        chunks = [self._storage.chunks[n] for n in self._own]
        if out is None:
            for chunk, part in zip(chunks, result, strict=True):
                tile = self._tile
                problem.queries.store_columns(part, tile.results, tile.head, self.row0, chunk.first)
            return
        slot = out.acquire()
        for chunk, part in zip(chunks, result, strict=True):
            place = b.columns(slot, chunk.first, chunk.values)
            b.store(b.rounded(part, problem.output), place)
        b.commit(slot, "warps")

    def _first_turn(self, turn: Value, *state: Value) -> list[Value]:
        rows, sums = _split(state)
        pending, block = self._scores()
        weighed = self._weights(Test.ALL, turn, self._settled(pending, block), rows)
        return self._finished(weighed, sums, block)

    def _turn(self, test: Test | None, turn: Value, *state: Value) -> list[Value]:
        rows, sums = self._adopted(*_split(state))
        theirs = self._wait_for_theirs()
        if self._number == 0:
            values = self._values_of_theirs(theirs, sums)
            pending, block = self._scores()
            sums = self._added_theirs(values, theirs, newest=len(block))
            weighed = self._weights(test, turn, self._settled(pending, block), rows)
        else:
            pending, block = self._scores()
            values = self._values_of_theirs(theirs, sums)
            scores = self._settled(pending, block, newest=len(values))
            weighed = self._weights(test, turn, scores, rows)
            sums = self._added_theirs(values, theirs)
        return self._finished(weighed, sums, block)

    def _last_turn(self, turn: Value, *state: Value) -> list[Value]:
        del turn
        rows, sums = self._adopted(*_split(state))
        theirs = self._wait_for_theirs()
        values = self._values_of_theirs(theirs, sums)
        return [*rows, *self._added_theirs(values, theirs)]

    def _adopted(self, rows: Rows, sums: Sequence[Value]) -> tuple[Rows, Sequence[Value]]:
        """The state at the maxima of the other group's block."""
        told = _taken(self._storage.told[1 - self._number])
        step = raised(self.row, told, rows, told)
        return step.rows, _in_step(sums, step.moved, step.factor)

    def _scores(self) -> tuple[Value, Block]:
        """S of this group's next block, a product for each chunk, pending; and its slots."""
        config = self._problem.config
        sums = b.fill([config.tile_m, config.tile_n], b.f32_constant(0.0))
        block: list[Value] = []
        for ring, first, count, _ in self._storage.chunks:
            block.append(ring.wait())
            queries, keys = b.columns(self._queries, first, count), b.columns(block[-1], 0, count)
            sums = b.product(sums, queries, keys, accumulate=first > 0, b_layout="nk")
        return sums, block

    def _settled(self, pending: Value, block: Block, newest: int = 0) -> Value:
        """S; the slots of the other group's values are free, but for that of P."""
        scores = b.settle(pending, newest=newest)
        self._release_others(block)
        return scores

    def _release_others(self, block: Block) -> None:
        """Hands the slots of the other group's values back, but for that with the weights."""
        for number in self._others:
            if number < len(block) - 1:
                b.release(block[number], "warps")

    def _weights(self, test: Test | None, turn: Value, scores: Value, rows: Rows) -> Weighed:
        """Weights of this group's block at maxima that the other group is told."""
        problem, row = self._problem, self.row
        scores = seen(
            problem, self._tile, scores, test, self._visited, turn, self.row0, problem.scale
        )
        step = raised(row, scores, rows)
        _hand_over(self._storage.told[self._number], step.rows.maximum)
        return weighed_at(problem, row, scores, step)

    def _finished(self, weighed: Weighed, sums: Sequence[Value], block: Block) -> list[Value]:
        """The state after a block of this group, whose weights are handed over."""
        sums = _in_step(sums, weighed.moved, weighed.factor)
        weights = b.rounded(weighed.weights, self._problem.element)
        token = self._storage.p[self._number].acquire()
        b.barrier()  # all warps have the scores: what they are made of is where weights go
        b.store(weights, self._place(block))
        values = self._values(weights, block, sums)
        b.commit(token, "warps")
        self._release_weights(block)
        return [*weighed.rows, *self._added(values, block)]

    def _wait_for_theirs(self) -> Block:
        """The slots of the other group's next block; those that this one has no use for are free."""
        block = [chunk.ring.wait() for chunk in self._storage.chunks]
        self._release_others(block)
        return block

    def _values_of_theirs(self, block: Block, sums: Sequence[Value]) -> list[Value]:
        """O += P V of the other group's block, when its weights are there; pending."""
        token = self._storage.p[1 - self._number].wait()
        b.release(token, "warps")
        return self._values(self._place(block), block, sums)

    def _place(self, block: Block) -> Value:
        """Where the weights of a block are."""
        return b.columns(block[-1], CHUNK, self._problem.config.tile_n)

    def _values(self, weights: Value, block: Block, sums: Sequence[Value]) -> list[Value]:
        """O += P V of this group's columns, pending."""
        chunks = [(block[n], self._storage.chunks[n].values) for n in self._own]
        return [
            b.product(own, weights, b.columns(slot, 0, count), accumulate=True, b_layout="kn")
            for own, (slot, count) in zip(sums, chunks, strict=True)
        ]

    def _added(self, values: Sequence[Value], block: Block, newest: int = 0) -> list[Value]:
        """O with a block's values, whose slots are free.

        Args:
          newest: products issued behind these that may still run.
        """
        sums: list[Value] = []
        for number, pending in zip(self._own, values, strict=True):
            later = len(values) - 1 - len(sums)
            sums.append(b.settle(pending, newest=newest + later))
            b.release(block[number], "warps")
        return sums

    def _added_theirs(self, values: Sequence[Value], block: Block, newest: int = 0) -> list[Value]:
        """The same of the other group's block."""
        sums = self._added(values, block, newest)
        self._release_weights(block)
        return sums

    def _release_weights(self, block: Block) -> None:
        """Hands the slot with the weights back, unless values of this group are in it."""
        if len(block) - 1 in self._others:
            b.release(block[-1], "warps")


def _split(state: Sequence[Value]) -> tuple[Rows, Sequence[Value]]:
    return Rows(*state[:ROW_VALUES]), state[ROW_VALUES:]


def _in_step(sums: Sequence[Value], moved: Value, factor: Value) -> Sequence[Value]:
    """O so far as it is with the new maxima."""
    kinds = [own.type for own in sums]
    return b.chosen(moved, kinds, lambda: [b.times_rows(x, factor) for x in sums], lambda: sums)


def _hand_over(ring: b.Ring, value: Value) -> None:
    slot = ring.acquire()
    b.store(value, slot)
    b.commit(slot, "warps")


def _taken(ring: b.Ring) -> Value:
    """What a slot holds, which is free again."""
    slot = ring.wait()
    value = b.load(slot)
    b.release(slot, "warps")
    return value
