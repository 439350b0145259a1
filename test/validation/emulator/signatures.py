"""Families of instructions: instructions of one family differ in sizes and registers alone."""

from __future__ import annotations

import re

from attn_mlir.runtime.emulator.ptx.ast import Instruction, Mem, Operand, Pair, Vec


def signature(instruction: Instruction) -> str:
    """The key of an instruction's family: the opcode without sizes, and the kinds of operands."""
    parts: list[str] = []
    for part in instruction.parts:
        part = re.sub(r"^m64n\d+", "m64nN", part)
        part = "xN" if re.fullmatch(r"x\d+", part) else part
        parts.append("shared::cta" if part == "shared" else part)
    return " ".join([".".join(parts), *map(_operand_kind, instruction.operands)])


def _operand_kind(operand: Operand) -> str:
    if isinstance(operand, Mem):
        return "[,]" if operand.coordinates else "[]"
    if isinstance(operand, Vec):
        return "{}"
    return "|" if isinstance(operand, Pair) else "r"
