"""Absorbed latent attention of 64 rows by two groups of threads that take blocks of keys in turn.

O has 512 columns, which are twice what a group has registers for. So each group holds half of them, for
all blocks, and finds the weights of every other block, which it uses itself and hands to the other one.

```text
move --q,left,right--> even --p,told--> odd        O's columns 0-255, and 256-511; blocks 0, 2, .. and 1, 3, ..
  ^                     | ^---p,told-----|
  '---------out---------'---------out----'
```
A block of keys is one of values as well. It comes in two halves, columns 0-255 and the others, each with a slot of
its own: scores begin with the first half, and a half of values is free again when its group has used it.
Behind the values in the second half lie columns that scores alone need, and there the weights are stored.

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
GROUPS = ("even", "odd")


class AlternatingStorage:
    """The rings of the kernel.

    Attributes:
      halves: rings of the first columns of keys, and of the others, whose slots have room for P.
      spans: first column of each, and their number.
      told: of each group, the row maxima of its blocks, in the end its row sums.
      p: of each group, tokens for the weights in a block's slot.
      out: where O is staged, which both groups fill; None for parts of the keys, whose O in f32 goes to
        memory from registers.
    """

    def __init__(self, problem: Problem):
        config, element, f32 = problem.config, problem.element, ir.F32Type.get()
        rows, keys, stages = config.tile_m, config.tile_n, config.kv_stages
        self.spans = ((0, HALF), (HALF, problem.columns - HALF))
        self.q = b.Ring("q", b.tile([rows, problem.columns], element, "shared"))
        left = b.tile([keys, HALF], element, "shared")
        right = b.tile([keys, HALF + keys], element, "shared")
        self.halves = b.Ring("left", left, stages=stages), b.Ring("right", right, stages=stages)
        told = b.tile([rows], f32, "shared")
        self.told = [b.Ring(f"told_{name}", told) for name in GROUPS]
        self.p = [b.Ring(f"p_{name}", None) for name in GROUPS]
        self.out: b.Ring | None = None
        if not problem.is_partial:
            out = b.tile([rows, LATENT_COLUMNS], problem.output, "shared")
            self.out = b.Ring("out", out, producers=("warps", "warps"))


def load_halves(
    problem: Problem, storage: AlternatingStorage, boxes: RowBoxes, tile: WorkTile
) -> None:
    """Fills Q once, then both halves of each block; one thread."""
    visited = problem.key_tiles(tile)

    def fill(turn: Value | int, found: Sequence[Value], *, is_whole: bool) -> None:
        key = visited.first_column(turn)
        for ring, (first, count) in zip(storage.halves, storage.spans, strict=True):
            slot = ring.acquire()
            part = b.columns(slot, 0, count)
            boxes.load(part, tile, key, first, found, ends=not is_whole)
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
    _leave(problem, storage, tile, b.times_rows(sums, inverse), group.first)
    if number == 0:
        store_lse(problem, group.row, tile, group.row0, maximum, total)


class _Group:
    """The turns of a group for one work tile; its state is (*rows, O)."""

    def __init__(self, problem: Problem, storage: AlternatingStorage, tile: WorkTile, number: int):
        self._problem, self._storage, self._tile, self._number = problem, storage, tile, number
        every = problem.key_tiles(tile)
        self._visited, self._theirs = (EveryOther(every, n) for n in (number, 1 - number))
        self.first = number * HALF
        self.row = Row.of(problem, problem.scale)
        self.row0 = problem.first_position(tile, 0)

    def all_blocks(self) -> tuple[Rows, Value]:
        """Rows and O of all blocks.

        The first block of all has none before it, and the last one may have none behind it.
        """
        count, own, first = self._problem.config.tile_m, self._visited.count, b.constant(0)
        self._queries = self._storage.q.wait()
        empty = b.fill([count, HALF], b.f32_constant(0.0))
        state = [*Rows.none(self.row, count), empty]
        if self._number == 0:
            first = b.INT.min(own, 1)
            state = b.loop(0, first, state, self._first_turn)
        phases = self._visited.phases(b.constant(0))
        state = visit(self._visited, phases, state, self._turn, first=first)
        state = b.loop(b.INT.sub(own, first), self._theirs.count, state, self._last_turn)
        b.release(self._queries, "warps")
        return Rows(*state[:ROW_VALUES]), state[ROW_VALUES]

    def _first_turn(self, turn: Value, *state: Value) -> list[Value]:
        rows, sums = _split(state)
        pending, block = self._scores()
        scores = b.settle(pending)
        weighed = self._weights(Test.ALL, turn, scores, rows)
        return self._values_of_own(weighed, sums, block)

    def _turn(self, test: Test | None, turn: Value, *state: Value) -> list[Value]:
        rows, sums = self._adopted(*_split(state))
        theirs = self._wait_for_theirs()
        if self._number == 0:
            values = self._values_of(theirs, sums)
            pending, block = self._scores()
            sums = b.settle(values, newest=1)
            theirs.release()
            scores = b.settle(pending)
            weighed = self._weights(test, turn, scores, rows)
        else:
            pending, block = self._scores()
            values = self._values_of(theirs, sums)
            scores = b.settle(pending, newest=1)
            weighed = self._weights(test, turn, scores, rows)
            sums = b.settle(values)
            theirs.release()
        return self._values_of_own(weighed, sums, block)

    def _last_turn(self, turn: Value, *state: Value) -> list[Value]:
        del turn
        rows, sums = self._adopted(*_split(state))
        theirs = self._wait_for_theirs()
        sums = b.settle(self._values_of(theirs, sums))
        theirs.release()
        return [*rows, sums]

    def _adopted(self, rows: Rows, sums: Value) -> tuple[Rows, Value]:
        """The state at the maxima of the other group's block."""
        told = _taken(self._storage.told[1 - self._number])
        step = raised(self.row, told, rows, told)
        return step.rows, _in_step(sums, step.moved, step.factor)

    def _scores(self) -> tuple[Value, "_Block"]:
        """S of this group's next block, pending, and its slots."""
        config = self._problem.config
        sums = b.fill([config.tile_m, config.tile_n], b.f32_constant(0.0))
        slots: list[Value] = []
        for ring, (first, count) in zip(self._storage.halves, self._storage.spans, strict=True):
            slots.append(ring.wait())
            queries, keys = b.columns(self._queries, first, count), b.columns(slots[-1], 0, count)
            sums = b.product(sums, queries, keys, accumulate=first > 0, b_layout="nk")
        return sums, _Block(*slots)

    def _wait_for_theirs(self) -> "_Block":
        """The slots of the other group's next block."""
        return _Block(*(ring.wait() for ring in self._storage.halves))

    def _values_of(self, theirs: "_Block", sums: Value) -> Value:
        """O += P V of the other group's block, when its weights are there; pending."""
        token = self._storage.p[1 - self._number].wait()
        b.release(token, "warps")
        return self._values(sums, self._place(theirs), theirs)

    def _weights(self, test: Test | None, turn: Value, scores: Value, rows: Rows) -> Weighed:
        """Weights of this group's block at maxima that the other group is told."""
        problem, row = self._problem, self.row
        scores = seen(
            problem, self._tile, scores, test, self._visited, turn, self.row0, problem.scale
        )
        step = raised(row, scores, rows)
        _hand_over(self._storage.told[self._number], step.rows.maximum)
        return weighed_at(problem, row, scores, step)

    def _values_of_own(self, weighed: Weighed, sums: Value, block: "_Block") -> list[Value]:
        """The state after a block of this group, whose weights are handed over."""
        sums = _in_step(sums, weighed.moved, weighed.factor)
        weights = b.rounded(weighed.weights, self._problem.element)
        token = self._storage.p[self._number].acquire()
        b.barrier()  # all warps have the scores: what they are made of is where weights go
        b.store(weights, self._place(block))
        pending = self._values(sums, weights, block)
        b.commit(token, "warps")
        b.release(block[1 - self._number], "warps")
        sums = b.settle(pending)
        b.release(block[self._number], "warps")
        return [*weighed.rows, sums]

    def _place(self, block: "_Block") -> Value:
        """Where the weights of a block are."""
        return b.columns(block.right, HALF, self._problem.config.tile_n)

    def _values(self, sums: Value, weights: Value, block: "_Block") -> Value:
        """O += P V of this group's columns, pending."""
        values = b.columns(block[self._number], 0, HALF)
        return b.product(sums, weights, values, accumulate=True, b_layout="kn")


class _Block(NamedTuple):
    """The slots of a block of keys."""

    left: Value
    right: Value

    def release(self) -> None:
        """Hands them back."""
        for slot in self:
            b.release(slot, "warps")


def _split(state: Sequence[Value]) -> tuple[Rows, Value]:
    return Rows(*state[:ROW_VALUES]), state[ROW_VALUES]


def _in_step(sums: Value, moved: Value, factor: Value) -> Value:
    """O so far as it is with the new maxima."""
    (found,) = b.chosen(moved, [sums.type], lambda: [b.times_rows(sums, factor)], lambda: [sums])
    return found


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


def _leave(
    problem: Problem, storage: AlternatingStorage, tile: WorkTile, result: Value, first: int
) -> None:
    """Half of the columns of O of a work tile."""
    if storage.out is None:
        row0 = problem.first_position(tile, 0)
        problem.queries.store_columns(result, tile.results, tile.head, row0, first)
        return
    slot = storage.out.acquire()
    b.store(b.rounded(result, problem.output), b.columns(slot, first, HALF))
    b.commit(slot, "warps")
