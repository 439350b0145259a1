"""Whether a kernel waits for its loads from tensor memory before it reads their registers.

PTX asks for `tcgen05.wait::ld` between a `tcgen05.ld` and the first read of what it loads. Some compilers leave most waits
out and rely on the assembler, which tracks the registers; their kernels cannot be held to the rule.
"""

from collections.abc import Iterator

from .ast import Instruction, Kernel, Mem, Not, Operand, Pair, Register, Vec


def waits_for_loads(kernel: Kernel) -> bool:
    """Whether `tcgen05.wait::ld` stands between most loads and their first use, in text order.

    A single load without its wait is a mistake and not a style. A kernel without any wait does not
    wait.
    """
    instructions = kernel.instructions
    if not any(_is_wait(instruction) for instruction in instructions):
        return False
    waited = missed = 0
    for position, instruction in enumerate(instructions):
        if instruction.parts[:2] == ("tcgen05", "ld"):
            loaded = set(_registers(instruction.operands[0]))
            if _waited(instructions, position + 1, loaded):
                waited += 1
            else:
                missed += 1
    return missed <= max(1, waited)


def _waited(instructions: list[Instruction], start: int, loaded: set[Register]) -> bool:
    """Whether a wait comes before the first read of one of the registers."""
    for instruction in instructions[start:]:
        if _is_wait(instruction):
            return True
        if not loaded.isdisjoint(_sources(instruction)):
            return False
    return True


def _is_wait(instruction: Instruction) -> bool:
    return instruction.parts[:2] == ("tcgen05", "wait::ld")


def _sources(instruction: Instruction) -> Iterator[Register]:
    """Registers that it reads: all but those of a first operand that is not an address."""
    if instruction.guard is not None:
        yield instruction.guard
    for position, operand in enumerate(instruction.operands):
        if position or isinstance(operand, Mem):
            yield from _registers(operand)


def _registers(operand: Operand) -> Iterator[Register]:
    match operand:
        case Register():
            yield operand
        case Not():
            yield operand.register
        case Vec():
            for item in operand.items:
                yield from _registers(item)
        case Pair():
            yield from _registers(operand.first)
            yield from _registers(operand.second)
        case Mem():
            yield from _registers(operand.base)
            if operand.coordinates is not None:
                yield from _registers(operand.coordinates)
        case _:
            return
