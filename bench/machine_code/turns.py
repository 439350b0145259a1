"""The cost of a turn of a loop on the way that it takes as a rule: the cheapest one that does the work.

Loops of attention have ways beside that one: a block in which nothing counts, scores that are too large, a maximum that has
moved, after which O is rescaled. Counted are the instructions of the way with the fewest of them that passes as much of the
work as any, say all copies. Waits that spin are loops of their own and cost nothing, as in `loops.py`; an inner loop that
does a little of the work, as one around a single copy, is passed once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attn_mlir.bench.machine_code.loops import Loop
from attn_mlir.bench.machine_code.sass import Function, Instruction

Work = Callable[[Instruction], int]


@dataclass(frozen=True)
class Turn:
    """Instructions of a turn, and how much work they do."""

    instructions: int
    work: int


@dataclass(frozen=True)
class Worker:
    """A loop that does some kind of work.

    Attributes:
      work: what an instruction counts for.
      body: blocks whose instructions count.
    """

    function: Function
    loop: Loop
    work: Work
    body: frozenset[int]

    @property
    def instructions(self) -> list[Instruction]:
        """All of the body, whether or not a turn passes them."""
        return [item for block in self.body for item in self.function.blocks[block].instructions]

    def turn(self, enough: int | None = None) -> Turn:
        """The cheapest turn among those with enough work, or with the most."""
        found: dict[int, int] = {}
        for entry in self._entries():
            for amount, instructions in self._ways(entry):
                found[amount] = min(instructions, found.get(amount, instructions))
        least = max(found) if enough is None else min(enough, max(found))
        return min(
            (Turn(n, amount) for amount, n in found.items() if amount >= least),
            key=lambda turn: turn.instructions,
        )

    def _entries(self) -> list[int]:
        """The blocks by which control comes into the loop."""
        outside = (
            target
            for number, block in enumerate(self.function.blocks)
            if number not in self.loop.blocks
            for target in block.successors
        )
        return sorted(self.loop.blocks.intersection(outside)) or [min(self.loop.blocks)]

    def _ways(self, entry: int) -> Iterator[tuple[int, int]]:
        """The work of ways from a block back to itself, and the fewest instructions for it."""
        blocks = {number: self.function.blocks[number] for number in self.loop.blocks}
        cost = {n: len(b.instructions) if n in self.body else 0 for n, b in blocks.items()}
        done = {
            n: sum(map(self.work, b.instructions)) if n in self.body else 0
            for n, b in blocks.items()
        }
        most = sum(done.values())
        queue, passed = [(cost[entry], entry, done[entry])], set[tuple[int, int]]()
        while queue:
            instructions, block, amount = heapq.heappop(queue)
            if (block, amount) in passed:
                continue
            passed.add((block, amount))
            for target in blocks[block].successors:
                if target == entry:
                    yield amount, instructions
                elif target in blocks and amount + done[target] <= most:
                    step = (instructions + cost[target], target, amount + done[target])
                    heapq.heappush(queue, step)


def workers(function: Function, nest: list[Loop], work: Work, least: int) -> list[Worker]:
    """The innermost loops that do this much of the work.

    Args:
      nest: loops of the function, as `loops.loops` finds them.
    """
    found: list[Worker] = []
    for loop in nest:
        inside = workers(function, loop.inner, work, least)
        found += inside
        blocks = set(loop.own_blocks)
        for inner in loop.inner:
            if _amount(function, inner.blocks, work):
                blocks |= inner.blocks
        if not inside and _amount(function, blocks, work) >= max(least, 1):
            found.append(Worker(function, loop, work, frozenset(blocks)))
    return found


def _amount(function: Function, blocks: frozenset[int] | set[int], work: Work) -> int:
    return sum(work(item) for block in blocks for item in function.blocks[block].instructions)
