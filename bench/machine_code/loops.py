"""Loops of a control-flow graph, and the one among them that does the softmax of unmasked tiles.

The rule that finds it, the same for every kernel:

1. Loops are the strongly connected parts of the graph, nested by taking away the edges into a loop's header and
   looking again. Waits that spin are loops too; they hold no exponential and are no part of the loop around them.
2. Candidates are loops whose own body (inner loops taken out) has at least 16 `MUFU.EX2` and reads scores from tensor
   memory (`LDTM`). A loop over output tiles that merely contains the softmax loops is no candidate by its inner loops,
   but it is one by a peeled first tile, and it then has that tile's masks.
3. A candidate is masked when its selects by column (`FSEL`, `SEL`, `FSETP`, `R2P`, `ISETP`) outnumber half its `LDTM`
   elements: a mask needs a select per score, an unmasked tile only a handful for bookkeeping.
4. Of the unmasked candidates the one with most `MUFU.EX2` is taken; of equals, the one with fewest instructions.

5. Where a loop branches to one of two blocks that both hold the exponentials, the shorter one is the way that ordinary
   scores take, and the other one, for scores that are too large for it, is no part of the body.

Scores per thread and iteration: the sum of N over its `LDTM.xN`, one 32-bit register of one row each. A thread's row
of a 128-column tile gives 128. Every other instruction of the body counts once, conditional paths included.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from attn_mlir.bench.machine_code.sass import Function, Instruction, count

MIN_EXPONENTIALS = (
    16  # a candidate's least MUFU.EX2: far above a lone rescale factor, far below a tile's
)
_LOAD = re.compile(r"^LDTM(?:\.\w+)*?\.x(\d+)")
_SELECTS = ("FSEL", "SEL", "FSETP", "R2P", "ISETP")


@dataclass
class Loop:
    """Block indices of a loop with all it contains, and the loops directly inside."""

    blocks: frozenset[int]
    inner: list[Loop] = field(default_factory=list["Loop"])

    @property
    def own_blocks(self) -> list[int]:
        """Blocks of this loop that are in none of its inner loops, in address order."""
        inside = frozenset[int]().union(*(loop.blocks for loop in self.inner))
        return sorted(self.blocks - inside)


@dataclass(frozen=True)
class SoftmaxLoop:
    """The body of a softmax loop and what it does per thread and iteration."""

    address: int
    instructions: list[Instruction]

    @property
    def scores(self) -> int:
        """Score elements that one thread handles per iteration."""
        return score_count(self.instructions)

    @property
    def selects(self) -> int:
        return count(self.instructions, *_SELECTS)

    @property
    def is_masked(self) -> bool:
        return self.selects * 2 > self.scores

    @property
    def exponentials(self) -> int:
        return count(self.instructions, "MUFU.EX2")

    @property
    def per_score(self) -> float:
        """Instructions per score element."""
        return len(self.instructions) / self.scores

    def mix(self) -> Counter[str]:
        """Instructions by opcode without suffixes."""
        return Counter(item.base for item in self.instructions)


def score_count(instructions: list[Instruction]) -> int:
    """Registers loaded from tensor memory by these instructions, per thread."""
    widths = (_LOAD.match(item.opcode) for item in instructions)
    return sum(int(width[1]) for width in widths if width)


def components(nodes: frozenset[int], edges: dict[int, list[int]]) -> list[frozenset[int]]:
    """Strongly connected components of the graph restricted to `nodes` (Tarjan, without recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[frozenset[int]] = []
    for root in sorted(nodes):
        if root in order:
            continue
        work = [(root, iter(edges[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in nodes:
                    continue
                if successor not in order:
                    order[successor] = low[successor] = len(order)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(edges[successor])))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], order[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    members: set[int] = set()
                    while node not in members:
                        members.add(stack.pop())
                    on_stack -= members
                    found.append(frozenset(members))
    return found


def loops(function: Function) -> list[Loop]:
    """The outermost loops, each with its nest."""
    edges = {number: block.successors for number, block in enumerate(function.blocks)}
    return _nest(frozenset(edges), edges, frozenset({0}))


def _nest(
    nodes: frozenset[int], edges: dict[int, list[int]], entries: frozenset[int]
) -> list[Loop]:
    result: list[Loop] = []
    for part in components(nodes, edges):
        if len(part) == 1 and next(iter(part)) not in edges[next(iter(part))]:
            continue
        entered = {
            target
            for source, targets in edges.items()
            if source not in part
            for target in targets
            if target in part
        } | (entries & part)
        headers = frozenset(entered or {min(part)})
        cut = {
            node: [target for target in edges[node] if target in part and target not in headers]
            for node in part
        }
        result.append(Loop(part, _nest(part, cut, headers)))
    return result


def _walk(nest: list[Loop]) -> list[Loop]:
    return [found for loop in nest for found in (loop, *_walk(loop.inner))]


def _ordinary(function: Function, own: list[int]) -> list[int]:
    """The blocks without the longer one of two that a branch leads to and that hold exponentials,
    and without what only follows from that one."""
    sizes = {
        block: len(function.blocks[block].instructions)
        for block in own
        if count(function.blocks[block].instructions, "MUFU.EX2") >= MIN_EXPONENTIALS
    }
    longer = {
        max(ways, key=lambda block: sizes[block])
        for block in own
        if len(ways := [way for way in function.blocks[block].successors if way in sizes]) > 1
    }
    left_out = set(longer)
    sources = {
        block: [other for other in own if block in function.blocks[other].successors]
        for block in own
    }
    for block in own:  # in address order, as the blocks behind one another lie
        if sources[block] and left_out.issuperset(sources[block]):
            left_out.add(block)
    return [block for block in own if block not in left_out]


def softmax_candidates(function: Function) -> list[SoftmaxLoop]:
    """Every loop of rule 2, masked or not, in address order."""
    found: list[SoftmaxLoop] = []
    for loop in _walk(loops(function)):
        own = _ordinary(function, loop.own_blocks)
        code = [item for block in own for item in function.blocks[block].instructions]
        if count(code, "MUFU.EX2") >= MIN_EXPONENTIALS and score_count(code):
            found.append(SoftmaxLoop(code[0].address, code))
    return sorted(found, key=lambda loop: loop.address)


def softmax_loop(function: Function) -> SoftmaxLoop | None:
    """The loop of unmasked tiles by the rule above; None when the kernel has no such loop."""
    unmasked = [loop for loop in softmax_candidates(function) if not loop.is_masked]
    return max(
        unmasked, key=lambda loop: (loop.exponentials, -len(loop.instructions)), default=None
    )
