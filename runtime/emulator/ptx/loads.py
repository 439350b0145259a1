"""Loads from tensor memory and the wait for them.

PTX respects a register dependency on `tcgen05.ld` with or without `tcgen05.wait::ld`, and orders no
memory by it (PTX ISA, memory consistency of tcgen05: register dependencies, same thread). So a
thread may read the registers before the wait; that the load is over takes the wait. The assembler
makes the first instruction that needs the registers wait for the load, so that it is over as well
behind a use that stays in front of the thread's next arrival. A store to tensor memory of what was
loaded begins behind the load for the same reason.
"""

from .arrivals import arrives, follow, hands_on
from .ast import Instruction, Kernel
from .cfg import EXIT, Graph
from .flow import read, written

_ACCESSES = frozenset("st mma cp shift dealloc commit".split())  # that a load may be too late for


def early_reads(kernel: Kernel, graph: Graph) -> frozenset[int]:
    """Positions of loads whose registers may be read before the wait."""
    return frozenset(at for at in _loads(kernel) if _is_read_early(kernel, graph, at))


def awaited_loads(kernel: Kernel, graph: Graph) -> frozenset[int]:
    """The loads, by position, that are over before their thread tells others or uses tensor memory
    again.

    On every path the wait or an instruction that needs the data, and that the assembler leaves
    where it is, comes first.
    """
    return frozenset(
        at for at in _loads(kernel) if not hands_on(kernel, graph, at, _hands_on, _is_wait)
    )


def stored_loads(kernel: Kernel, graph: Graph) -> dict[int, frozenset[int]]:
    """Loads, by position, whose data a `tcgen05.st` needs on every path from them, by its
    position.
    """
    result: dict[int, set[int]] = {}
    for load in _loads(kernel):
        needs: dict[int, bool] = {}

        def ends(
            at: int, instruction: Instruction, uses: bool, needs: dict[int, bool] = needs
        ) -> bool:
            if instruction.parts[:2] == ("tcgen05", "st"):
                needs[at] = uses and needs.get(at, True)
                return needs[at]
            return _is_wait(instruction)

        follow(kernel, graph, load, ends)
        for at, is_needed in needs.items():
            if is_needed:
                result.setdefault(at, set()).add(load)
    return {at: frozenset(loads) for at, loads in result.items()}


def _loads(kernel: Kernel) -> list[int]:
    return [at for at, i in enumerate(kernel.instructions) if i.parts[:2] == ("tcgen05", "ld")]


def _is_wait(instruction: Instruction) -> bool:
    return instruction.parts[:2] == ("tcgen05", "wait::ld")


def _hands_on(instruction: Instruction) -> bool:
    parts = instruction.parts
    return arrives(instruction) or (parts[0] == "tcgen05" and parts[1] in _ACCESSES)


def _is_read_early(kernel: Kernel, graph: Graph, load: int) -> bool:
    """Whether a path leads from a load to a read of one of its registers,
    and not through a wait.
    """
    code, blocks = kernel.instructions, graph.blocks
    loaded = written(code[load])
    home = next(block for block in blocks if block.first <= load < block.last)
    visited: set[int] = set()
    todo = [(load + 1, home)]
    while todo:
        first, block = todo.pop()
        for at in range(first, block.last):
            if _is_wait(code[at]):
                break
            if read(code[at]) & loaded:
                return True
        else:
            for goal in block.successors:
                if goal != EXIT and goal not in visited:
                    visited.add(goal)
                    todo.append((blocks[goal].first, blocks[goal]))
    return False
