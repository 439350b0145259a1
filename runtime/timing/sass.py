"""Machine code of a kernel: instructions with control fields and PTX lines, blocks and edges.

Read from the text of `nvdisasm -c -gp -hex`, where each instruction is followed by its two words,
and a comment names the PTX line behind the instructions that follow it.
"""

import re
from dataclasses import dataclass, field

from attn_mlir.errors import TargetError

from .control import Control, decode

INSTRUCTION_BYTES = 16

_SECTION = re.compile(r"^\.text\.(\S+):$")
_LABEL = re.compile(r"^(\.L_\w+|\$?[\w$]+):$")
_LINE = re.compile(r'^\s*//## File "[^"]*", line (\d+)')
_FIRST = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;(.*)/\* 0x[0-9a-f]{16} \*/")
_SECOND = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/")
_GUARD = re.compile(r"^@(!?U?P(?:\d+|T))\s+")
_TARGET = re.compile(r"`\(([^)]+)\)")
_INDIRECT = re.compile(r'BRANCH_TARGETS ([^"*]*)')
_CONVERGENCE = re.compile(r"^B\d+")
_BRANCHES = frozenset("BRA JMP BRX JMX BREAK BSYNC EXIT RET CALL KILL".split())


@dataclass(slots=True, eq=False)
class Instruction:
    """One SASS instruction.

    Attributes:
      address: in bytes from the kernel's first instruction.
      guard: such as `P0` or `!UP1`, or empty.
      opcode: with its suffixes, such as `HGMMA.64x80x16.F32.BF16`.
      line: PTX line that it was made from; 0 if unknown.
      block: index of its block.
      cost: of the instruction on a chip; set by whoever simulates it.
    """

    address: int
    guard: str
    opcode: str
    operands: str
    line: int
    control: Control
    indirect: tuple[str, ...] = ()
    block: int = -1
    cost: object = None

    @property
    def base(self) -> str:
        """The opcode without suffixes: `MUFU` of `MUFU.EX2`."""
        return self.opcode.partition(".")[0]

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of the opcode: `("EX2",)` of `MUFU.EX2`."""
        return tuple(self.opcode.split(".")[1:])

    @property
    def targets(self) -> tuple[str, ...]:
        """Labels that a branch may go to; empty for anything else."""
        if self.base in ("BRX", "JMX"):
            return self.indirect
        return tuple(_TARGET.findall(self.operands)) if self.base in ("BRA", "JMP") else ()

    @property
    def convergence(self) -> str:
        """The convergence barrier of BSSY and BSYNC, such as `B0`, or empty."""
        match = _CONVERGENCE.match(self.operands)
        return match[0] if match and self.base in ("BSSY", "BSYNC", "BREAK") else ""

    @property
    def is_conditional(self) -> bool:
        """Control may also fall through (`BRA.U UP4` has its guard as an operand)."""
        operand = self.operands.partition("`")[0].strip(" ,")
        is_guarded = self.guard not in ("", "PT", "UPT")
        return is_guarded or (self.base in ("BRA", "JMP") and operand not in ("", "~URZ", "PT"))

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        return f"{self.address:04x} {guard}{self.opcode} {self.operands}".rstrip()


@dataclass(slots=True, eq=False)
class Block:
    """Straight-line code; `taken` and `after` are the blocks that may follow, or None.

    Attributes:
      targets: blocks that the last instruction jumps to.
      after: the block that follows in the text, if control can get there.
    """

    number: int
    labels: list[str] = field(default_factory=list[str])
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    targets: list[int] = field(default_factory=list[int])
    after: int | None = None

    @property
    def last(self) -> Instruction:
        """Its last instruction."""
        return self.instructions[-1]

    @property
    def successors(self) -> list[int]:
        """All blocks that may follow."""
        return [*self.targets, *([] if self.after is None else [self.after])]


@dataclass(slots=True, eq=False)
class Function:
    """A kernel's code: blocks in the order of the text; block 0 is the entry."""

    name: str
    blocks: list[Block]

    @property
    def instructions(self) -> list[Instruction]:
        """All instructions in the order of the text."""
        return [one for block in self.blocks for one in block.instructions]

    @property
    def has_lines(self) -> bool:
        """Whether any instruction knows its PTX line."""
        return any(one.line for one in self.instructions)


def parse(text: str) -> dict[str, Function]:
    """The functions of a cubin, by name.

    Raises:
      TargetError: the text is not that of `nvdisasm -c -gp -hex`.
    """
    blocks_of: dict[str, list[Block]] = {}
    blocks: list[Block] | None = None
    line, pending = 0, None
    for number, row in enumerate(text.splitlines(), 1):
        if section := _SECTION.match(row):
            blocks = blocks_of[section[1]] = [Block(0)]
            line, pending = 0, None
        elif blocks is None:
            continue
        elif tag := _LINE.match(row):
            line = int(tag[1])
        elif label := _LABEL.match(row):
            if blocks[-1].instructions:
                blocks.append(Block(len(blocks)))
            blocks[-1].labels.append(label[1])
        elif first := _FIRST.match(row):
            pending = first
        elif second := _SECOND.match(row):
            if pending is None:
                raise TargetError(f"line {number} of nvdisasm's text has a word of no instruction")
            _add(blocks, pending, line, decode(int(second[1], 16)))
            pending = None
    functions = {name: _connected(name, parsed) for name, parsed in blocks_of.items()}
    functions = {name: one for name, one in functions.items() if one.blocks}
    if not functions:
        raise TargetError("nvdisasm's text has no instructions with their words")
    return functions


def _add(blocks: list[Block], first: re.Match[str], line: int, control: Control) -> None:
    text = first[2]
    guard = _GUARD.match(text)
    if guard:
        text = text[guard.end() :]
    opcode, _, operands = text.partition(" ")
    indirect = _INDIRECT.search(first[0])
    one = Instruction(
        int(first[1], 16), guard[1] if guard else "", opcode, operands.strip(), line, control,
        tuple(indirect[1].strip().split(",")) if indirect else (),
    )  # fmt: skip
    blocks[-1].instructions.append(one)
    if one.base in _BRANCHES:
        blocks.append(Block(len(blocks)))


def _connected(name: str, parsed: list[Block]) -> Function:
    """Drops empty blocks, whose labels move to the next one, and draws the edges."""
    blocks: list[Block] = []
    index: dict[str, int] = {}
    pending: list[str] = []
    for block in parsed:
        pending += block.labels
        if block.instructions:
            index.update(dict.fromkeys(pending, len(blocks)))
            block.labels, pending = pending, []
            block.number = len(blocks)
            blocks.append(block)
    convergence = _convergence_targets(blocks, index)
    for number, block in enumerate(blocks):
        last = block.last
        for one in block.instructions:
            one.block = number
        names = last.targets
        if last.base == "BSYNC":
            block.targets = (
                [convergence[last.convergence]] if last.convergence in convergence else []
            )
        elif last.base not in ("CALL", "BREAK"):
            block.targets = [index[label] for label in names if label in index]
        ends = last.base in ("EXIT", "RET", "BRX", "JMX", "KILL", "BRA", "JMP", "BSYNC")
        falls = not ends or last.is_conditional
        if last.base == "BSYNC" and not block.targets:
            falls = True
        if falls and number + 1 < len(blocks):
            block.after = number + 1
    return Function(name, blocks)


def _convergence_targets(blocks: list[Block], index: dict[str, int]) -> dict[str, int]:
    """Where the lanes that stand at `BSYNC Bn` go on, if only one place is named for Bn."""
    targets: dict[str, set[int]] = {}
    for block in blocks:
        for one in block.instructions:
            if one.base == "BSSY":
                for label in _TARGET.findall(one.operands):
                    if label in index:
                        targets.setdefault(one.convergence, set()).add(index[label])
    return {name: ends.pop() for name, ends in targets.items() if len(ends) == 1}
