"""The section of docs/lab/emulator.md about the comparison with a Hopper GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attn_mlir.validation.differential import suite
from attn_mlir.validation.differential.case import Program
from attn_mlir.validation.differential.findings import FINDINGS, FIRST_RUN
from attn_mlir.validation.differential.outcome import PROBES, Outcome
from attn_mlir.validation.differential.vectors import kind_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "lab" / "emulator.md"
BEGIN, END = "<!-- differential: begin -->", "<!-- differential: end -->"


@dataclass
class Tally:
    """Counts by family.

    Attributes:
      values: elements that were compared.
      opcodes: full spellings under test.
    """

    programs: Counter[str] = field(default_factory=Counter[str])
    values: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    differ: Counter[str] = field(default_factory=Counter[str])
    opcodes: dict[str, set[str]] = field(default_factory=dict[str, set[str]])

    def add(self, program: Program, outcome: Outcome) -> None:
        """Count a program."""
        family = program.family
        self.programs[family] += 1
        self.refused[family] += outcome.refused
        self.differ[family] += bool(outcome.problems)
        if not program.error:
            self.values[family] += sum(column.count for column in program.columns)
        self.opcodes.setdefault(family, set()).update(map(kind_of, program.covers))


def _rows(tally: Tally) -> str:
    rows: list[str] = []
    for name in suite.FAMILIES:
        differed, unknown = FIRST_RUN.get(name, (0, 0))
        opcodes = tally.opcodes.get(name, set[str]())
        heads = sorted({opcode.split(".")[0].split()[0] for opcode in opcodes})
        rows.append(
            f"| {name} | {tally.programs[name]} | {len(opcodes)} | "
            f"{', '.join(f'`{head}`' for head in heads)} | {tally.values[name]:,} | "
            f"{tally.refused[name] or ''} | {differed + unknown or ''} | {tally.differ[name]} |"
        )
    total = len(set[str]().union(*tally.opcodes.values()))
    first = sum(differed + unknown for differed, unknown in FIRST_RUN.values())
    rows.append(
        f"| **all** | **{tally.programs.total()}** | **{total}** | | **{tally.values.total():,}** | "
        f"**{tally.refused.total()}** | **{first}** | **{tally.differ.total()}** |"
    )
    return "\n".join(rows)


def section(tally: Tally, about: dict[str, str], seeds: Sequence[int], adversaries: int) -> str:
    """The text between the markers."""
    return _SECTION.format(
        rows=_rows(tally),
        found="\n".join(f"| {' | '.join(row)} |" for row in FINDINGS),
        seeds=" and ".join(map(str, seeds)),
        adversaries=adversaries,
        probes=", ".join(f"`{name}`" for name in sorted(PROBES)),
        **about,
    )


def write(text: str) -> None:
    """Put the section into the page.

    Raises:
      SystemExit: the page lacks the markers.
    """
    page = PAGE.read_text(encoding="utf-8")
    if BEGIN not in page or END not in page:
        raise SystemExit(f"{PAGE} has no lines '{BEGIN}' and '{END}'")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{text}{END}{after}", encoding="utf-8")
    print(f"{PAGE.name}: written")


_SECTION = """\
Measured on one {gpu}, driver {driver} (whose assembler compiled the PTX), {date}, with the seeds
{seeds}. A program is one generated kernel, launched once on the GPU. On the emulator it runs under
the fair schedule and under {adversaries} adversarial ones with every checker on, and has to give the GPU's
bytes without a finding each time ({probes} only under the fair one: it asks about phases
that are long over).

| family | programs | opcodes | instructions | values compared | stop both | differed at first | differ now |
| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |
{rows}

"Opcodes" counts spellings with types and modifiers; those of all families together are fewer than
their sum. "Stop both": the GPU reports an error or hangs, and the emulator stops too. "Differed at
first": programs of the family's first run that gave another result, that one of the two refused, or that used an
instruction unknown to the emulator.

What was found, and how it was resolved. "Emulator": fixed there, with a test in
`test/differential/test_findings.py` or `test/emulator`. "Program": it asked for something that PTX
does not define, or the difference is the assembler's own doing; it is not generated any more.

| where | difference | decided from | resolved |
| --- | --- | --- | --- |
{found}
"""
