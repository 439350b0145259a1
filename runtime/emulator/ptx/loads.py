"""Whether a kernel waits for its loads from tensor memory before it reads their registers.

PTX asks for `tcgen05.wait::ld` between a `tcgen05.ld` and the first read of what it loads. Some compilers leave most waits
out and rely on the assembler, which tracks the registers; their kernels cannot be held to the rule. Others have the waits,
but move reads of the registers above them: such a read still has the wait of its own load behind it. Where a wait was
forgotten the next load, or the end, comes first.
"""

from .ast import Instruction, Kernel
from .cfg import EXIT, Block, Graph
from .flow import read, registers_in


def waits_for_loads(kernel: Kernel) -> bool:
    """Whether `tcgen05.wait::ld` stands between most loads and their first use, in text order.

    A single load without its wait is a mistake and not a style, and a load that nothing reads or waits for says nothing. A
    kernel without any wait does not wait.
    """
    code = kernel.instructions
    if not any(_is_wait(instruction) for instruction in code):
        return False
    found = [_waited(code, at) for at, instruction in enumerate(code) if _is_load(instruction)]
    return found.count(False) <= max(1, found.count(True))


def early_reads(kernel: Kernel, graph: Graph) -> frozenset[int]:
    """The loads, by position, whose registers are read before the wait that still comes for them.

    On every path from each first read a wait comes before another load and before the end.
    """
    code = kernel.instructions
    loads = [at for at, instruction in enumerate(code) if _is_load(instruction)]
    if not loads:
        return frozenset()
    is_covered = _covered(kernel, graph)
    found: set[int] = set()
    for at in loads:
        reads = _first_reads(kernel, graph, at)
        if reads and all(is_covered[position] for position in reads):
            found.add(at)
    return frozenset(found)


def _covered(kernel: Kernel, graph: Graph) -> list[bool]:
    """By position: whether a wait comes on every path from there, before a load and before the end."""
    code, blocks = kernel.instructions, graph.blocks

    def first_of(block: Block) -> bool | None:
        """Whether a wait is the first of a block's loads and waits; None without any."""
        inside = code[block.first : block.last]
        return next((_is_wait(i) for i in inside if _is_load(i) or _is_wait(i)), None)

    def after(number: int) -> bool:
        return all(goal != EXIT and begin[goal] for goal in blocks[number].successors)

    firsts = [first_of(block) for block in blocks]
    begin = [True] * len(blocks)
    changed = True
    while changed:
        now = [after(at) if first is None else first for at, first in enumerate(firsts)]
        changed, begin = now != begin, now
    result = [False] * len(code)
    for number, block in enumerate(blocks):
        state = after(number)
        for at in reversed(range(block.first, block.last)):
            if _is_load(code[at]) or _is_wait(code[at]):
                state = _is_wait(code[at])
            result[at] = state
    return result


def _first_reads(kernel: Kernel, graph: Graph, load: int) -> set[int]:
    """Positions of the reads of a load's registers that no wait precedes, the first on each path."""
    code, blocks = kernel.instructions, graph.blocks
    loaded = registers_in(code[load].operands[0])
    home = next(block for block in blocks if block.first <= load < block.last)
    found: set[int] = set()
    seen: set[int] = set()
    todo = [(load + 1, home.last)]
    while todo:
        first, last = todo.pop()
        for at in range(first, last):
            if _is_wait(code[at]):
                break
            if read(code[at]) & loaded:
                found.add(at)
                break
        else:
            block = home if last == home.last else blocks[graph.block_at[first]]
            for goal in block.successors:
                if goal != EXIT and goal not in seen:
                    seen.add(goal)
                    todo.append((blocks[goal].first, blocks[goal].last))
    return found


def _waited(code: list[Instruction], load: int) -> bool | None:
    """Whether a wait comes before the first read of one of the load's registers; None when neither comes."""
    loaded = registers_in(code[load].operands[0])
    for instruction in code[load + 1 :]:
        if _is_wait(instruction):
            return True
        if read(instruction) & loaded:
            return False
    return None


def _is_load(instruction: Instruction) -> bool:
    return instruction.parts[0] == "tcgen05" and instruction.parts[1:2] == ("ld",)


def _is_wait(instruction: Instruction) -> bool:
    return instruction.parts[0] == "tcgen05" and instruction.parts[1:2] == ("wait::ld",)
