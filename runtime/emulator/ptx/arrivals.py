"""Whether what a kernel reads from shared memory has come before its thread tells others that it has read.

A load is issued and goes on by itself; its registers make the first instruction that needs them wait. An arrival needs
none of them. The assembler may move what works on registers alone, a product of `mma.sync` included, behind an arrival that
follows it in the text, so that such uses say nothing. A store or a branch stays in front of it.
"""

from .ast import Instruction, Kernel
from .cfg import EXIT, Graph
from .flow import read, written

_STAY = frozenset("st stmatrix red atom bra brx wgmma tcgen05 ret exit trap".split())


def awaits_reads(kernel: Kernel, graph: Graph, line: int) -> bool:
    """Whether each path from the loads of a line to the next arrival has an instruction that waits for the data.

    One that stays in front of the arrival, and that needs a register of the load or one computed from it.
    """
    code = kernel.instructions
    loads = [at for at, instruction in enumerate(code) if instruction.line == line]
    starts = [at for at in loads if code[at].parts[0] in ("ld", "ldmatrix")]
    return bool(starts) and not any(_hands_on(kernel, graph, at) for at in starts)


def _hands_on(kernel: Kernel, graph: Graph, load: int) -> bool:
    """Whether a path leads from a load to an arrival, and nothing on it waits for the data."""
    code, blocks = kernel.instructions, graph.blocks
    home = next(block for block in blocks if block.first <= load < block.last)
    seen: set[tuple[int, int]] = set()
    todo = [(load + 1, home.last, home.successors, written(code[load]))]
    while todo:
        first, last, successors, data = todo.pop()
        for instruction in code[first:last]:
            uses = bool(read(instruction) & data)
            if uses and instruction.parts[0] in _STAY:
                break
            if _arrives(instruction):
                return True
            if uses:
                data |= written(instruction)
            elif instruction.guard is None:
                data &= ~written(instruction)
        else:
            for goal in successors:
                if goal != EXIT and (goal, data) not in seen:
                    seen.add((goal, data))
                    todo.append(
                        (blocks[goal].first, blocks[goal].last, blocks[goal].successors, data)
                    )
    return False


def _arrives(instruction: Instruction) -> bool:
    """Whether an instruction tells others what its thread has done, or has an engine write."""
    parts = instruction.parts
    if parts[0] == "mbarrier":
        return parts[1].startswith("arrive")
    if parts[0] in ("st", "red", "atom"):
        return instruction.has("release", "acq_rel")
    return parts[0] in ("bar", "barrier") or parts[:3] == ("cp", "async", "bulk")
