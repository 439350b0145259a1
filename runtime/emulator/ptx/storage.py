"""Which array type each register is kept in.

PTX compilers declare untyped registers (`.b32 %r`) and put integers and floats in them alike. A
32-bit register is kept as float32 when its typed uses are mostly float, which saves a view per
use; a 64-bit register that packs two floats is kept as float32[2, 32]. The choice changes speed,
never results.
"""

from .ast import Instruction, Kernel, Operand, Pair, Register, Vec

_MOVES = frozenset(("mov", "selp"))


def registers_of(operand: Operand) -> list[Register]:
    """The registers directly in an operand, not those inside addresses."""
    if isinstance(operand, Register):
        return [operand]
    if isinstance(operand, Vec):
        return [register for item in operand.items for register in registers_of(item)]
    if isinstance(operand, Pair):
        return registers_of(operand.first) + registers_of(operand.second)
    return []


def choose_storage(kernel: Kernel) -> list[str]:
    """The storage kind of each register, by register index."""
    base: list[str] = []
    for register in kernel.registers:
        if register.type == "pred":
            base.append("pred")
        else:
            base.append({"f32": "f32", "f64": "f64"}.get(register.type, f"u{register.bits}"))
    _choose_pairs(kernel, base)
    _choose_floats(kernel, base)
    return base


def _choose_pairs(kernel: Kernel, storage: list[str]) -> None:
    packed = [0] * len(storage)
    other = [0] * len(storage)
    for instruction in kernel.instructions:
        is_packed = instruction.type == "f32x2"
        if instruction.parts[0] == "mov" and not is_packed:
            continue
        for operand in instruction.operands:
            for register in registers_of(operand):
                if register.bits == 64:
                    (packed if is_packed else other)[register.index] += 1
    for register in kernel.registers:
        if packed[register.index] and not other[register.index]:
            storage[register.index] = "pair"


def _operand_is_float(instruction: Instruction, position: int, pairs: list[str]) -> bool | None:
    """Whether the instruction treats a 32-bit operand as f32; None when it does not care."""
    head, parts = instruction.parts[0], instruction.parts
    if head in ("cvt", "set") and len(parts) > 2:
        return parts[-2 if position == 0 else -1] == "f32"
    if head in ("tcgen05", "shfl"):
        return None
    if head == "mov":
        for operand in instruction.operands:
            if isinstance(operand, Register) and pairs[operand.index] == "pair":
                return True
        return None
    if head in ("wgmma", "mma"):
        return None
    return instruction.type == "f32"


def _choose_floats(kernel: Kernel, storage: list[str]) -> None:
    leader = list(range(len(storage)))

    def find(index: int) -> int:
        while leader[index] != index:
            leader[index] = leader[leader[index]]
            index = leader[index]
        return index

    votes = [0] * len(storage)
    for instruction in kernel.instructions:
        operands = instruction.operands
        if instruction.parts[0] in _MOVES:
            linked = [o for o in operands[:3] if isinstance(o, Register) and o.bits == 32]
            for other in linked[1:]:
                leader[find(other.index)] = find(linked[0].index)
        for position, operand in enumerate(operands):
            for register in registers_of(operand):
                if register.bits == 32:
                    is_float = _operand_is_float(instruction, position, storage)
                    if is_float is not None:
                        votes[register.index] += 1 if is_float else -1
    totals: dict[int, int] = {}
    for register in kernel.registers:
        if storage[register.index] == "u32":
            group = find(register.index)
            totals[group] = totals.get(group, 0) + votes[register.index]
    for register in kernel.registers:
        if storage[register.index] == "u32" and totals[find(register.index)] > 0:
            storage[register.index] = "f32"
