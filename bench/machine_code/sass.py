"""Machine code of a cubin as instructions, basic blocks and edges, read from `nvdisasm`'s text."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from attn_mlir.errors import TargetError
from attn_mlir.tools import find_ptxas, find_tool

INSTRUCTION_BYTES = 16
_SECTIONS = 0x28  # of an ELF file's header: where section headers begin, and behind 10 bytes their width and number
_SECTION = "<4xIQ16xQ"  # of such a header: kind, flags, and bytes of the section
_PROGRAM, _EXECUTED = 1, 4  # kind and flag of machine code

_LABEL = re.compile(r"^(\.L_x_\d+|\.text\.\S+|[A-Za-z_$][\w$]*):$")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;(.*)$")
_GUARD = re.compile(r"^@(!?U?P(?:\d+|T))\s+")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_INDIRECT = re.compile(r'BRANCH_TARGETS ([^"]*)"')
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


# What a report counts, and what it is called there.
OPCODES = {
    "UTCHMMA": "tensor core products",
    "UTMALDG": "TMA loads",
    "UTMASTG": "TMA stores",
    "USETMAXREG": "register budgets",
    "UTCBAR": "tensor core commits",
    "LDTM": "tensor memory loads",
    "STTM": "tensor memory stores",
    "MUFU.EX2": "exponentials",
    "FFMA2": "packed multiply-adds",
    "FFMA": "multiply-adds",
    "LDL": "local loads (spills)",
    "STL": "local stores (spills)",
}


@dataclass(frozen=True)
class Instruction:
    """One line of SASS: byte address, guard (`P0`, `!UP1`, or empty), opcode with its suffixes, operands."""

    address: int
    guard: str
    opcode: str
    operands: str
    indirect_targets: tuple[str, ...] = ()

    @property
    def base(self) -> str:
        """The opcode without suffixes: `MUFU` of `MUFU.EX2`."""
        return self.opcode.partition(".")[0]

    @property
    def targets(self) -> tuple[str, ...]:
        """Labels that this instruction may jump to; empty for anything but a branch."""
        if self.base == "BRX" or self.base == "JMX":
            return self.indirect_targets
        if self.base in ("BRA", "JMP"):
            return tuple(_TARGET.findall(self.operands))
        return ()

    @property
    def is_conditional(self) -> bool:
        """Control may also go on to the next instruction (guards of `BRA.U UP4` stand among the operands)."""
        named = self.operands.partition("`")[0].strip(" ,")
        return self.guard not in ("", "PT", "UPT") or bool(named)

    @property
    def ends_block(self) -> bool:
        return bool(self.targets) or self.base in ("EXIT", "RET", "BRX", "BRA")


@dataclass
class Block:
    """Straight-line code; `successors` are indices into `Function.blocks`."""

    labels: list[str] = field(default_factory=list[str])
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    successors: list[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class Function:
    """A kernel's code. Blocks stand in address order; block 0 is the entry."""

    name: str
    blocks: list[Block]

    @cached_property
    def instructions(self) -> list[Instruction]:
        return [item for block in self.blocks for item in block.instructions]

    def count(self, *opcodes: str) -> int:
        """How many instructions have one of these opcodes, suffixes beyond the given ones ignored."""
        return count(self.instructions, *opcodes)

    def mix(self) -> Counter[str]:
        return Counter(item.base for item in self.instructions)


@dataclass(frozen=True)
class Usage:
    """Sizes in the cubin's header, per thread (bytes) and per CTA (static shared memory, bytes)."""

    registers: int
    stack_bytes: int
    static_smem_bytes: int
    local_bytes: int


def count(instructions: list[Instruction], *opcodes: str) -> int:
    """How many of `instructions` are one of `opcodes`: `MUFU.EX2` matches `MUFU.EX2.F16`, `FFMA` not `FFMA2`."""
    wanted = [name.split(".") for name in opcodes]
    return sum(
        any(item.opcode.split(".")[: len(parts)] == parts for parts in wanted)
        for item in instructions
    )


def tool(name: str) -> Path:
    """A program of CUDA: the compiler's own `ptxas`, else as `find_tool`; exits with the remedy."""
    try:
        return find_ptxas() if name == "ptxas" else find_tool(name, f"nvidia-cuda-{name}")
    except TargetError as error:
        sys.exit(f"{error} (extra `test`)")


def _run(program: str, *arguments: str) -> str:
    """Standard output, then standard error."""
    done = subprocess.run([str(tool(program)), *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{program} {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout + done.stderr


def disassemble(cubin: Path) -> list[Function]:
    """Every function of the cubin, kernels first in the file's order."""
    return parse(_run("nvdisasm", "-c", str(cubin)))


def words(cubin: Path) -> str:
    """The text of `disassemble` with the two words of each instruction behind it and below."""
    return _run("nvdisasm", "-c", "-hex", str(cubin))


def usage(cubin: Path, entry: str) -> Usage:
    """The entry's line of `cuobjdump -res-usage`."""
    text = _run("cuobjdump", "-res-usage", str(cubin))
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.strip() == f"Function {entry}:":
            match = _USAGE.search(lines[number + 1])
            if match:
                return Usage(*(int(value) for value in match.groups()))
    sys.exit(f"{cubin} has no resource usage for {entry}")


def instruction_count(cubin: bytes) -> int:
    """Instructions of all functions, by the sizes of their sections, which end with some that pad them."""
    begin, width, count = struct.unpack_from("<Q10xHH", cubin, _SECTIONS)
    sections = [struct.unpack_from(_SECTION, cubin, begin + n * width) for n in range(count)]
    return sum(
        size // INSTRUCTION_BYTES
        for kind, flags, size in sections
        if kind == _PROGRAM and flags & _EXECUTED
    )


def spill_bytes(ptx: Path, target: str) -> int:
    """Bytes of spill stores and loads per thread, over all functions, when our `ptxas` assembles this PTX."""
    with tempfile.TemporaryDirectory() as folder:
        output = str(Path(folder) / "kernel.cubin")
        text = _run("ptxas", "-v", "-O3", f"-arch={target}", str(ptx), "-o", output)
    found = _SPILLS.findall(text)
    if not found:
        sys.exit(f"ptxas -v said nothing about spills of {ptx}")
    return sum(int(stores) + int(loads) for stores, loads in found)


def parse(text: str) -> list[Function]:
    """Functions of `nvdisasm -c` text. A section `.text.NAME` begins one."""
    functions: list[Function] = []
    name = ""
    blocks: list[Block] = []
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label and label[1].startswith(".text."):
            if name and any(block.instructions for block in blocks):
                functions.append(_connected(name, blocks))
            name, blocks = label[1].removeprefix(".text."), [Block()]
            continue
        if label and name:
            if blocks[-1].instructions:
                blocks.append(Block())
            blocks[-1].labels.append(label[1])
            continue
        code = _INSTRUCTION.search(line)
        if code and name:
            instruction = _instruction(code)
            blocks[-1].instructions.append(instruction)
            if instruction.ends_block:
                blocks.append(Block())
    if name and any(block.instructions for block in blocks):
        functions.append(_connected(name, blocks))
    return functions


def _instruction(code: re.Match[str]) -> Instruction:
    text = code[2]
    guard = _GUARD.match(text)
    if guard:
        text = text[guard.end() :]
    opcode, _, operands = text.partition(" ")
    indirect = _INDIRECT.search(code[0])
    targets = tuple(indirect[1].strip().split(",")) if indirect else ()
    return Instruction(
        int(code[1], 16), guard[1] if guard else "", opcode, operands.strip(), targets
    )


def _connected(name: str, blocks: list[Block]) -> Function:
    """Drops empty tail blocks and draws the edges."""
    kept = [block for block in blocks if block.instructions]
    index: dict[str, int] = {}
    pending: list[str] = []
    position = 0
    for block in blocks:
        pending.extend(block.labels)
        if block.instructions:
            index.update(dict.fromkeys(pending, position))
            pending.clear()
            position += 1
    for number, block in enumerate(kept):
        last = block.instructions[-1]
        targets = [index[label] for label in last.targets if label in index]
        falls_through = not last.ends_block or (last.base not in ("BRX",) and last.is_conditional)
        if falls_through and number + 1 < len(kept):
            targets.append(number + 1)
        block.successors = list(dict.fromkeys(targets))
    return Function(name, kept)
