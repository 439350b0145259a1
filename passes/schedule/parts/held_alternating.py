"""Absorbed latent attention of 64 rows by two groups of threads that take blocks of keys in turn.

O has 512 columns, which are twice what a group has registers for. So each group holds half of them, for
all blocks, and finds the weights of every other block, which it uses itself and hands to the other one.

```text
move --q,keys--> even --p,told--> odd        O's columns 0-255, and 256-511; blocks 0, 2, .. and 1, 3, ..
  ^               | ^---p,told-----|
  '------out------'------out-------'
```
A block of keys is one of values as well, and comes in chunks of columns (`latent_chunks`). Behind the values in the
last one lie columns that scores alone need, and there the weights are stored.

A turn of a group: the values of the other one's block, n - 1, and all of its own one, n.

```text
take the maxima of n - 1; O to them, where they moved
even: O += P(n-1) V(n-1) between chunks of S(n) = Q K(n)^T; settle O, then S    mask, maxima, weights of n
odd:  S(n) = Q K(n)^T   O += P(n-1) V(n-1)   settle S     mask, maxima, weights of n    settle O
hand over the maxima, as soon as they are known; O to them, where they moved
store P(n), rounded; issue O += P(n) V(n), P from registers; hand over P(n)    settle O
```
No slot is kept while its group waits for keys: `even` settles O before it waits for more chunks.
So the tensor core has S(n + 1) of `odd` while `even` computes weights, and both values of block n while `odd` does.
"""

from collections.abc import Sequence

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn.latent import LATENT_COLUMNS

from . import builder as b
from .held_halves import hand_over, in_step, taken
from .latent_chunks import CHUNK, Block, Half, key_chunks
from .online import Row
from .problem import Problem, Value, WorkTile
from .scores import (
    ROW_VALUES,
    Rows,
    Weighed,
    raised,
    reciprocal,
    seen_at_edges,
    store_lse,
    weighed_at,
    with_sink,
)
from .visited import EveryOther

GROUPS = ("even", "odd")


class AlternatingStorage:
    """The rings of the kernel.

    Attributes:
      chunks: of blocks of keys; in the last slot of a block there is room for P.
      told: of each group, the row maxima of its blocks, in the end its row sums.
      p: of each group, tokens for the weights in a block's last slot.
      out: where O is staged, which both groups fill; None for parts of the keys, whose O in f32 goes to
        memory from registers.
    """

    def __init__(self, problem: Problem):
        config, element, f32 = problem.config, problem.element, ir.F32Type.get()
        self.q = b.Ring("q", b.tile([config.tile_m, problem.columns], element, "shared"))
        self.chunks = key_chunks(problem, config.tile_n)
        told = b.tile([config.tile_m], f32, "shared")
        self.told = [b.Ring(f"told_{name}", told) for name in GROUPS]
        self.p = [b.Ring(f"p_{name}", None) for name in GROUPS]
        self.out: b.Ring | None = None
        if not problem.is_partial:
            out = b.tile([config.tile_m, LATENT_COLUMNS], problem.output, "shared")
            self.out = b.Ring("out", out, producers=("warps", "warps"))


def attend(problem: Problem, storage: AlternatingStorage, tile: WorkTile, number: int) -> None:
    """Weights of every other block, half of O; the LSE by the first group."""
    group = _Group(problem, storage, tile, number)
    rows, sums = group.all_blocks()
    maximum, total = rows.maximum, rows.total()
    hand_over(storage.told[number], total)
    total = b.map_elements(b.fadd, total, taken(storage.told[1 - number]))
    divisor = with_sink(problem, group.row, tile, group.row0, maximum, total)
    inverse = b.map_elements(lambda t: reciprocal(t, None), divisor)
    b.barrier()  # nobody of the group reads Q any more, in whose place O may be staged
    group.half.leave(storage.out, tile, [b.times_rows(x, inverse) for x in sums])
    if number == 0:
        store_lse(problem, group.row, tile, group.row0, maximum, total)


class _Group:
    """The turns of a group for one work tile; its state is (*rows, *O), O by chunks."""

    def __init__(self, problem: Problem, storage: AlternatingStorage, tile: WorkTile, number: int):
        self._problem, self._storage, self._tile, self._number = problem, storage, tile, number
        every = problem.key_tiles(tile)
        self._visited, self._theirs = (EveryOther(every, n) for n in (number, 1 - number))
        self.half = Half(problem, storage.chunks, number, kept=1)
        self.row = Row.of(problem, problem.scale)
        self.row0 = problem.first_position(tile, 0)

    def all_blocks(self) -> tuple[Rows, Sequence[Value]]:
        """Rows and O of all blocks.

        The first block of all has none before it, and the last one may have none behind it.
        """
        own, first = self._visited.count, b.constant(0)
        self._edges = self._visited.phases(first)
        self._queries = self._storage.q.wait()
        state = [*Rows.none(self.row, self._problem.config.tile_m), *self.half.none()]
        if self._number == 0:
            first = b.INT.min(own, 1)
            state = b.loop(0, first, state, self._first_turn)
        state = b.loop(first, own, state, self._turn)
        state = b.loop(b.INT.sub(own, first), self._theirs.count, state, self._last_turn)
        b.release(self._queries, "warps")
        return _split(state)

    def _first_turn(self, turn: Value, *state: Value) -> list[Value]:
        rows, sums = _split(state)
        block: list[Value] = []
        pending = self.half.scores(self._queries, block, len(self.half.chunks))
        weighed = self._weights(turn, self._settled(pending, block), rows)
        return self._finished(weighed, sums, block)

    def _turn(self, turn: Value, *state: Value) -> list[Value]:
        half, (rows, sums) = self.half, self._adopted(*_split(state))
        theirs, block = half.wait_for_values(), list[Value]()
        if self._number == 0:
            pending = half.scores(self._queries, block, 1)
            values = self._values_of_theirs(theirs, sums)
            pending = half.scores(self._queries, block, 1, pending)
            sums = self._added_theirs(values, theirs, newest=1)
            pending = half.scores(self._queries, block, len(half.chunks), pending)
            weighed = self._weights(turn, self._settled(pending, block), rows)
        else:
            pending = half.scores(self._queries, block, len(half.chunks))
            values = self._values_of_theirs(theirs, sums)
            scores = self._settled(pending, block, newest=len(values))
            weighed = self._weights(turn, scores, rows)
            sums = self._added_theirs(values, theirs)
        return self._finished(weighed, sums, block)

    def _last_turn(self, turn: Value, *state: Value) -> list[Value]:
        del turn
        rows, sums = self._adopted(*_split(state))
        theirs = self.half.wait_for_values()
        return [*rows, *self._added_theirs(self._values_of_theirs(theirs, sums), theirs)]

    def _adopted(self, rows: Rows, sums: Sequence[Value]) -> tuple[Rows, Sequence[Value]]:
        """The state at the maxima of the other group's block."""
        told = taken(self._storage.told[1 - self._number])
        step = raised(self.row, told, rows, told)
        return step.rows, in_step(sums, step.moved, step.factor)

    def _settled(self, pending: Value, block: Block, newest: int = 0) -> Value:
        """S; the slots that were for it alone are free."""
        scores = b.settle(pending, newest=newest)
        self.half.release_others(block)
        return scores

    def _weights(self, turn: Value, scores: Value, rows: Rows) -> Weighed:
        """Weights of this group's block at maxima that the other group is told."""
        problem, row = self._problem, self.row
        scores = seen_at_edges(
            problem, self._tile, scores, self._edges, self._visited, turn, self.row0, problem.scale
        )
        step = raised(row, scores, rows)
        hand_over(self._storage.told[self._number], step.rows.maximum)
        return weighed_at(problem, row, scores, step)

    def _finished(self, weighed: Weighed, sums: Sequence[Value], block: Block) -> list[Value]:
        """The state after a block of this group, whose weights are handed over."""
        sums = in_step(sums, weighed.moved, weighed.factor)
        weights = b.rounded(weighed.weights, self._problem.element)
        token = self._storage.p[self._number].acquire()
        b.barrier()  # all warps have the scores: what they are made of is where weights go
        b.store(weights, self._place(block))
        values = self.half.multiply(weights, block, sums)
        b.commit(token, "warps")
        self.half.release_kept(block)
        return [*weighed.rows, *self.half.settle(values, block)]

    def _values_of_theirs(self, block: Block, sums: Sequence[Value]) -> list[Value]:
        """O += P V of the other group's block, when its weights are there; pending."""
        token = self._storage.p[1 - self._number].wait()
        b.release(token, "warps")
        return self.half.multiply(self._place(block), block, sums)

    def _added_theirs(self, values: Sequence[Value], block: Block, newest: int = 0) -> list[Value]:
        """O with the other group's block, all of whose slots are free."""
        sums = self.half.settle(values, block, newest)
        self.half.release_kept(block)
        return sums

    def _place(self, block: Block) -> Value:
        """Where the weights of a block are."""
        return b.columns(block[-1], CHUNK, self._problem.config.tile_n)


def _split(state: Sequence[Value]) -> tuple[Rows, Sequence[Value]]:
    return Rows(*state[:ROW_VALUES]), state[ROW_VALUES:]
