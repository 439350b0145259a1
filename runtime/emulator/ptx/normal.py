"""Registers that never hold a subnormal float32: `.ftz` need not look for one in them.

Kernels that flush to zero do so in almost every instruction, and most operands are results of
others. A register is normal when all that is ever written to it is: flushed results, immediates,
and moves of these. Like the storage of registers this changes speed, never results.
"""

from .ast import REGISTER_BITS, Imm, Instruction, Kernel, Operand, Register, Vec
from .flow import registers_in, written

_FLUSHED = frozenset(
    "add sub mul mad fma div rcp sqrt rsqrt ex2 lg2 sin cos tanh min max abs neg".split()
)
_MOVES = {"mov": 2, "selp": 3}  # how many operands are the result and what is copied to it
_NARROW = frozenset(kind for kind, bits in REGISTER_BITS.items() if bits not in (32, 64))
_WHOLE = frozenset(("b32", "b64", "f32", "u32", "u64"))
_EXPONENT = 0x7F80_0000
_FRACTION = 0x007F_FFFF


def normal_registers(kernel: Kernel) -> int:
    """The registers in neither half of which there ever is a subnormal float32.

    Returns:
      Bits by register index. A new warp's registers hold zeros, which are normal.
    """
    moves: list[tuple[int, tuple[Operand, ...]]] = []
    suspect = 0
    for instruction in kernel.instructions:
        results, sources = written(instruction), _copied_words(instruction)
        if sources:
            moves.append((results, sources))
        elif not _is_flushed(instruction):
            suspect |= results
    before = -1
    while before != suspect:
        before = suspect
        for results, sources in moves:
            if not all(is_normal(source, ~suspect) for source in sources):
                suspect |= results
    return ((1 << len(kernel.registers)) - 1) & ~suspect


def is_normal(operand: Operand, normal: int) -> bool:
    """Whether an operand holds no subnormal float32, nor does either half of it."""
    match operand:
        case Register():
            return bool(normal >> operand.index & 1)
        case Imm():
            return _is_normal_number(operand)
        case Vec():
            return all(is_normal(item, normal) for item in operand.items)
        case _:
            return False


def _is_normal_number(number: Imm) -> bool:
    """False where it depends on the type that a number is taken for, as of float64 and decimals."""
    if number.float_width == 32:
        words = (number.float_bits,)
    elif isinstance(number.value, int) and not number.float_width:
        words = (number.value & 0xFFFF_FFFF, number.value >> 32 & 0xFFFF_FFFF)
    else:
        return False
    return all(word & _EXPONENT or not word & _FRACTION for word in words)


def _copied_words(instruction: Instruction) -> tuple[Operand, ...]:
    """The operands that an instruction copies to its result; none unless they are whole words."""
    ends = _MOVES.get(instruction.parts[0])
    if ends is None or instruction.type not in _WHOLE:
        return ()
    operands = instruction.operands[:ends]
    return operands[1:] if all(map(_is_wide, operands)) else ()


def _is_wide(operand: Operand) -> bool:
    """Whether an operand consists of registers of 32 or 64 bits and immediates."""
    if isinstance(operand, Register):
        return operand.type not in _NARROW
    match operand:
        case Imm():
            return True
        case Vec():
            return all(_is_wide(item) for item in operand.items)
        case _:
            return False


def _is_flushed(instruction: Instruction) -> bool:
    """Whether its result is a float32, or two, that was flushed."""
    return (
        instruction.parts[0] in _FLUSHED
        and instruction.has("ftz")
        and instruction.type in ("f32", "f32x2")
        and registers_in(instruction.operands[0]) != 0
        and isinstance(instruction.operands[0], Register)
    )
