"""Data-flow analyses of registers over all paths of a kernel.

Sets of registers are the bits of an int, by register index.
"""

from collections.abc import Callable

from .ast import Instruction, Kernel, Mem, Not, Operand, Pair, Register, Vec
from .cfg import EXIT, Graph

_NO_RESULT = frozenset("bar barrier bra brx ret exit trap nanosleep setmaxnreg call".split())


def registers_in(operand: Operand) -> int:
    """The registers of an operand, those in an address included."""
    if isinstance(operand, Register):
        return 1 << operand.index
    match operand:
        case Not():
            return 1 << operand.register.index
        case Vec():
            mask = 0
            for item in operand.items:
                mask |= registers_in(item)
            return mask
        case Pair():
            return registers_in(operand.first) | registers_in(operand.second)
        case Mem():
            inner = 0 if operand.coordinates is None else registers_in(operand.coordinates)
            return inner | registers_in(operand.base)
        case _:
            return 0


def _has_result(instruction: Instruction) -> bool:
    parts = instruction.parts
    if not instruction.operands or isinstance(instruction.operands[0], Mem):
        return False
    return (parts[0] not in _NO_RESULT or "red" in parts) and parts[:2] != ("tcgen05", "dealloc")


def written(instruction: Instruction) -> int:
    """The registers that an instruction writes."""
    return _uses(instruction)[0]


def read(instruction: Instruction) -> int:
    """The registers that an instruction reads, its guard included;
    accumulators of wgmma are not.
    """
    return _uses(instruction)[1]


def _uses(instruction: Instruction) -> tuple[int, int]:
    """The registers that it writes and reads, computed once for all analyses."""
    if instruction.uses is None:
        operands = instruction.operands
        writes = 0
        if _has_result(instruction):
            count = 2 if instruction.parts[:3] == ("tcgen05", "ld", "red") else 1
            for operand in operands[:count]:
                writes |= registers_in(operand)
            operands = operands[count:]
        reads = 0 if instruction.guard is None else 1 << instruction.guard.index
        for operand in operands:
            reads |= registers_in(operand)
        instruction.uses = (writes, reads)
    return instruction.uses


Step = Callable[[Instruction, int], int]


def _before(
    kernel: Kernel, graph: Graph, entry: int, step: Step, *, unreached: int = 0
) -> list[int]:
    """The set before each instruction: the union over all paths of `step` applied from `entry` on.

    Functions are on no path; what is before their instructions begins with `unreached`.
    """
    code, blocks = kernel.instructions, graph.blocks
    into: list[int | None] = [None] * len(blocks)
    into[0] = entry
    todo = [0]
    while todo:
        number = todo.pop()
        state = into[number]
        assert state is not None
        for instruction in code[blocks[number].first : blocks[number].last]:
            state = step(instruction, state)
        for successor in blocks[number].successors:
            if successor == EXIT:
                continue
            at_block = into[successor]
            if at_block is None or at_block | state != at_block:
                into[successor] = state if at_block is None else at_block | state
                todo.append(successor)
    result = [0] * len(code)
    for number, block in enumerate(blocks):
        at_block = into[number]
        state = unreached if at_block is None else at_block
        for at in range(block.first, block.last):
            result[at] = state
            state = step(code[at], state)
    return result


def unwritten_reads(kernel: Kernel, graph: Graph) -> dict[int, list[str]]:
    """Names of the registers, by instruction, that it reads although no path to it writes them.

    A mov does not count as a read: compilers copy undefined registers if the copy, which is
    undefined as well, is not read.
    """

    def step(instruction: Instruction, defined: int) -> int:
        if instruction.parts[0] == "mov":
            sources = read(instruction)
            if sources and not sources & defined:
                return defined
        return defined | written(instruction)

    code = kernel.instructions
    reads: dict[int, list[str]] = {}
    for at, defined in enumerate(_before(kernel, graph, 0, step, unreached=-1)):
        missing = read(code[at]) & ~defined
        if missing and code[at].parts[0] != "mov":
            reads[at] = [r.name for r in kernel.registers if missing >> r.index & 1]
    return reads


def unfenced_products(kernel: Kernel, graph: Graph) -> dict[int, list[str]]:
    """Names of the registers, by wgmma, that something else may have used since the last
    wgmma.fence.

    Consecutive products into the same accumulator need no fence between them.
    """
    everything = (1 << len(kernel.registers)) - 1

    def step(instruction: Instruction, used: int) -> int:
        if instruction.parts[:2] == ("wgmma", "fence"):
            return 0
        if instruction.parts[0] != "wgmma":
            return used | read(instruction) | written(instruction)
        if instruction.parts[1] == "mma_async":
            return used & ~written(instruction)
        return used

    code = kernel.instructions
    if not any(instruction.parts[:2] == ("wgmma", "mma_async") for instruction in code):
        return {}
    products: dict[int, list[str]] = {}
    for at, used in enumerate(_before(kernel, graph, everything, step)):
        if code[at].parts[:2] != ("wgmma", "mma_async"):
            continue
        mine = registers_in(code[at].operands[0])
        if isinstance(code[at].operands[1], Vec):
            mine |= registers_in(code[at].operands[1])
        if used & mine:
            products[at] = [r.name for r in kernel.registers if (used & mine) >> r.index & 1]
    return products
