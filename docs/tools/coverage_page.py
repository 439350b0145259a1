"""Generates docs/reference/coverage.md: which instructions of the machine the emulator executes.

    python docs/tools/coverage_page.py -o docs/reference/coverage.md

The table of families (`coverage_families`) has an example of each. Whether the emulator executes it is
found by translating the example for both targets.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from coverage_families import SECTIONS

from attn_mlir.files import write_file
from attn_mlir.runtime.emulator.isa.registry import TABLE
from attn_mlir.runtime.emulator.isa.translate import Translation
from attn_mlir.runtime.emulator.ptx.errors import PtxError
from attn_mlir.runtime.emulator.ptx.layout import lay_out_local, lay_out_shared
from attn_mlir.runtime.emulator.ptx.parser import parse
from attn_mlir.runtime.emulator.ptx.program import Program

TARGETS = ("sm_100a", "sm_90a")
Status = Literal["yes", "no", "none"]

_KERNEL = """.version 9.0
.target {target}
.address_size 64
.shared .align 1024 .b8 tile[1024];
.visible .entry k(.param .u64 a)
.reqntid 128, 1, 1
.maxnreg 128
{{
    .reg .pred p<8>; .reg .b8 b<4>; .reg .b16 h<16>; .reg .b32 r<64>; .reg .b64 rd<32>; .reg .b128 q<4>;
    {example}
    ret;
}}
"""
EXAMPLE_LINE = _KERNEL.splitlines().index("    {example}") + 1


@dataclass(frozen=True, slots=True)
class Family:
    """A mnemonic with its qualifiers and operand form.

    Attributes:
      section: of the table.
      targets: that have it.
      example: one instruction.
      test: "file::function" under test/emulator, or "" when it is not executed.
      reason: why it is not executed, or "".
    """

    section: str
    targets: tuple[str, ...]
    example: str
    test: str
    reason: str


@cache
def families() -> tuple[Family, ...]:
    """The rows of the table.

    Raises:
      ValueError: a row does not have the form `targets | example | test or !reason`.
    """
    found: list[Family] = []
    for section, rows in SECTIONS.items():
        for row in rows.strip().splitlines():
            where, example, last = (part.strip() for part in row.split(" | "))
            targets = {"both": TARGETS, "100": TARGETS[:1], "90": TARGETS[1:]}[where]
            reason = last[1:].strip() if last.startswith("!") else ""
            found.append(Family(section, targets, example, "" if reason else last, reason))
    return tuple(found)


def kernel_text(example: str, target: str) -> str:
    """A kernel with one instruction, on line EXAMPLE_LINE."""
    return _KERNEL.format(target=target, example=example)


def _program(example: str, target: str) -> Program:
    module = parse(kernel_text(example, target))
    kernel = module.kernels["k"]
    lay_out_shared(module, kernel)
    lay_out_local(kernel)
    return Translation(module, kernel)


@cache
def refusal(example: str, target: str) -> str | None:
    """The emulator's error for an instruction; None if it executes it."""
    try:
        _program(example, target).translate_all()
    except PtxError as error:
        return str(error)
    return None


def status(family: Family, target: str) -> Status:
    """ "yes" executed, "no" not executed, "none" the target has no such instruction."""
    if target not in family.targets:
        return "none"
    return "yes" if refusal(family.example, target) is None else "no"


# ---- the page

_MARK = {"yes": "yes", "no": "**no**", "none": "–"}


def render() -> str:
    """The page, in Markdown."""
    rows = families()
    lines = [
        "# What the emulator executes",
        "",
        "Made by `python docs/tools/coverage_page.py -o docs/reference/coverage.md`; a test keeps it",
        "current. Each row is one example of a family of instructions. *yes*: the emulator executes it;",
        "**no**: it refuses it; –: the target has no such instruction, and the emulator says so, as",
        "ptxas does. Whatever is not executed is an error that quotes the line of the PTX. The test",
        "named executes the instruction and checks what it did, on `sm_100a` where that has it. Modifiers",
        "may stand in each order that ptxas takes: behind the mnemonic in any, but for types among types",
        "and state spaces among state spaces.",
        "",
        "| target | families | executed |",
        "| --- | --- | --- |",
    ]
    for target in TARGETS:
        there = [row for row in rows if target in row.targets]
        done = sum(status(row, target) == "yes" for row in there)
        lines.append(f"| `{target}` | {len(there)} | {done} |")
    for section in SECTIONS:
        lines += ["", f"## {section}", "", "| instruction | sm_100a | sm_90a | test |"]
        lines.append("| --- | --- | --- | --- |")
        for row in rows:
            if row.section == section:
                marks = " | ".join(_MARK[status(row, target)] for target in TARGETS)
                what = f"`{row.test}`" if row.test else row.reason
                example = row.example.rstrip(";").replace("|", "\\|")
                lines.append(f"| `{example}` | {marks} | {what} |")
    lines += ["", "## Plain instructions", "", *_plain(), ""]
    return "\n".join(lines)


def _plain() -> list[str]:
    """The mnemonics that the table above does not have."""
    listed = {row.example.split(".")[0].split(" ")[0] for row in families()}
    listed.add("call")  # an error when it is reached: compilers leave calls of __assertfail
    rest = sorted({key[0] for key in TABLE} - listed)
    words = ", ".join(f"`{name}`" for name in rest)
    return [f"Executed as well, with the types and modifiers that PTX gives them: {words}."]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page, or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, help="file to write (default: print)")
    output: Path | None = parser.parse_args(arguments).output
    if output is None:
        print(render())
    else:
        write_file(output, render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
