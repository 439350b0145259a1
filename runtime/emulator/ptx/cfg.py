"""Basic blocks of a kernel and where diverged lanes meet again.

Lanes that part at a branch meet at its immediate post-dominator: the first block that every path
from the branch to the end passes. A guarded exit and a trap do not count as ways to the end: lanes
that leave there simply do not come to the meeting place.
"""

from dataclasses import dataclass, field

from .ast import Instruction, Kernel, Name, Target

EXIT = -1  # stands for the end of the kernel among block numbers


@dataclass(slots=True)
class Block:
    """Instructions [first, last) of the kernel; block numbers are indices of `Graph.blocks`.

    Attributes:
      successors: block numbers, taken target first; EXIT for an unconditional end of the kernel.
      reconvergence: immediate post-dominator, or EXIT.
    """

    first: int
    last: int
    successors: list[int] = field(default_factory=list[int])
    reconvergence: int = EXIT


@dataclass(slots=True)
class Graph:
    """The control-flow graph; `block_at` maps an instruction index that starts a block."""

    blocks: list[Block]
    block_at: dict[int, int]


def is_exit(instruction: Instruction) -> bool:
    """Whether lanes that execute it leave the kernel."""
    return instruction.parts[0] in ("ret", "exit", "trap")


def branch_targets(kernel: Kernel, instruction: Instruction) -> list[int]:
    """Instruction indices that a branch may go to when it is taken."""
    if instruction.parts[0] == "bra":
        target = instruction.operands[0]
        assert isinstance(target, Target)
        return [target.label.position]
    table = instruction.operands[-1]
    assert isinstance(table, Name)
    return [label.position for label in kernel.branch_tables[table.name]]


def build_graph(kernel: Kernel) -> Graph:
    """Split a kernel into basic blocks and find the post-dominator of each."""
    code = kernel.instructions
    leaders = {0}
    for at, instruction in enumerate(code):
        if instruction.parts[0] in ("bra", "brx"):
            leaders.update(branch_targets(kernel, instruction))
            leaders.add(at + 1)
        elif is_exit(instruction) or at in kernel.calls:
            leaders.add(at + 1)
    leaders.update(site.start for site in kernel.calls.values() if site.start >= 0)
    starts = sorted(at for at in leaders if at < len(code))
    block_at = {start: number for number, start in enumerate(starts)}
    blocks = [
        Block(start, end) for start, end in zip(starts, [*starts[1:], len(code)], strict=True)
    ]

    def number_of(at: int) -> int:
        return block_at[at] if at < len(code) else EXIT

    for block in blocks:
        if block.first == block.last:
            block.successors = [EXIT]
            continue
        last = code[block.last - 1]
        after = number_of(block.last)
        if last.parts[0] in ("bra", "brx"):
            block.successors = [number_of(at) for at in branch_targets(kernel, last)]
            if last.guard is not None:
                block.successors.append(after)
        elif is_exit(last) and last.guard is not None:
            block.successors = [after]
        elif last.parts[0] == "trap":
            block.successors = []
        elif is_exit(last):
            block.successors = [EXIT]
        else:
            block.successors = [after]
    _find_post_dominators(blocks)
    return Graph(blocks, block_at)


def _find_post_dominators(blocks: list[Block]) -> None:
    """The Cooper-Harvey-Kennedy iteration on the reversed graph, rooted at EXIT."""
    predecessors: dict[int, list[int]] = {}
    for number, block in enumerate(blocks):
        for successor in block.successors:
            predecessors.setdefault(successor, []).append(number)
    order: list[int] = []  # postorder of the reversed graph
    visited = {EXIT}
    stack: list[tuple[int, int]] = [(EXIT, 0)]
    while stack:
        node, position = stack.pop()
        before = predecessors.get(node, [])
        if position < len(before):
            stack.append((node, position + 1))
            if before[position] not in visited:
                visited.add(before[position])
                stack.append((before[position], 0))
        else:
            order.append(node)
    rank = {node: position for position, node in enumerate(order)}
    parent: dict[int, int] = {EXIT: EXIT}
    changed = True
    while changed:
        changed = False
        for node in reversed(order):
            if node == EXIT:
                continue
            meet: int | None = None
            for successor in blocks[node].successors:
                if successor not in parent:
                    continue
                if meet is None:
                    meet = successor
                    continue
                other = successor
                while meet != other:
                    while rank[meet] < rank[other]:
                        meet = parent[meet]
                    while rank[other] < rank[meet]:
                        other = parent[other]
            if meet is not None and parent.get(node) != meet:
                parent[node] = meet
                changed = True
    for number, block in enumerate(blocks):
        block.reconvergence = parent.get(number, EXIT)
