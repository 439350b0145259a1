"""Generated PTX on a Hopper GPU and on the emulator: the commands.

python test/differential/run.py generate CASES [--seed N]
python test/differential/gpu.py CASES RESULTS             (on the machine with the GPU)
python test/differential/run.py compare CASES RESULTS     (1 if anything differs)
python test/differential/run.py record CASES RESULTS      (vectors for `make test`)
python test/differential/run.py table CASES RESULTS [CASES RESULTS ..]    (docs/differential.md)
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from attn_mlir.errors import LaunchError
from differential import emulate, suite, tensormaps
from differential.case import Program, load, save
from differential.findings import FINDINGS, FIRST_RUN
from differential.judge import Difference, differences

VECTORS = FOLDER / "vectors" / "h200.xz"
PAGE = FOLDER.parent.parent / "docs" / "differential.md"
LEAST = 6  # programs of each family among the vectors
VECTOR_BYTES = 1_900_000  # the file must stay below 2 MiB


@dataclass
class Outcome:
    """What came of one program.

    Attributes:
      refused: both the GPU and the emulator stopped.
      problems: text of every difference.
    """

    program: Program
    refused: bool = False
    problems: list[str] = field(default_factory=list[str])


def judged(program: Program) -> Outcome:
    """Run a program with a GPU's results on the emulator and compare; tensor maps as well."""
    outcome = Outcome(program)
    try:
        emulated = emulate.run(program)
    except LaunchError as error:
        if program.error:
            outcome.refused = True
        else:
            outcome.problems.append(f"{program.name}: the emulator stops: {error}")
        return outcome
    if program.error:
        outcome.problems.append(f"{program.name}: the GPU stops: {program.error}")
        return outcome
    found: list[Difference] = differences(program, program.results, emulated)
    outcome.problems += map(str, found)
    for index, spec in enumerate(program.maps):
        address = program.addresses[spec.buffer] + spec.offset
        if tensormaps.encode(spec, address) != program.map_bytes[index]:
            outcome.problems.append(f"{program.name}: map {index}: the driver's bytes differ")
    return outcome


def together(cases: Path, results: Path) -> Iterator[Program]:
    """Programs with what the GPU left behind."""
    for program, result in zip(load(cases), load(results), strict=True):
        if program.name != result.name:
            raise SystemExit(f"{results} is not of {cases}: {result.name}, expected {program.name}")
        program.results = result.results
        program.map_bytes, program.addresses = result.map_bytes, result.addresses
        program.error = result.error
        yield program


def compare(cases: Path, results: Path) -> int:
    """Print every difference; 1 if there is one."""
    outcomes = [judged(program) for program in together(cases, results)]
    for outcome in outcomes:
        for problem in outcome.problems:
            print(problem)
    bad = sum(bool(outcome.problems) for outcome in outcomes)
    refused = sum(outcome.refused for outcome in outcomes)
    print(f"{len(outcomes)} programs, {bad} differ, {refused} stop both")
    return 1 if bad else 0


_PLACES = frozenset("global shared shared::cta shared::cluster local const".split())
_HINTS = frozenset(
    "weak volatile relaxed acquire release acq_rel cta cluster gpu sys nc ca cg cs lu cv wb wt".split()
)


def _kind(opcode: str) -> str:
    """An opcode without what says only a size (the N of wgmma) or how an access is cached."""
    parts = opcode.split(".")
    if parts[0] in ("ld", "st", "atom", "red"):
        parts = [p for p in parts if p not in _HINTS and not p.startswith(("L1::", "L2::"))]
    return ".".join(p[:3] if p.startswith("m64n") else p for p in parts)


def _aspects(program: Program) -> set[str]:
    """What a recorded program stands for: its opcodes, those of large families taken apart.

    For memory, copies and products every state space or rank and every operation and type is covered,
    but not every pair of them.
    """
    result: set[str] = set()
    for opcode in map(_kind, program.covers):
        parts = opcode.split(".")
        if parts[:2] == ["wgmma", "mma_async"]:
            d, a, b = parts[5:8]
            result |= {f"wgmma d {d}", f"wgmma a {a}", f"wgmma b {b}"}
        elif parts[0] in ("ld", "st", "atom", "red", "cp", "mma"):
            words = [p for p in parts[1:] if p in _PLACES or p.endswith("d")]
            rest = [p for p in parts if p not in words and p not in ("tile", "satfinite")]
            result |= {".".join([parts[0], *words]), ".".join(rest)}
        else:
            result.add(opcode)
    return result


def record(cases: Path, results: Path) -> None:
    """Keep programs that cover every opcode in few bytes, and a few more of every family."""
    left = [p for p in together(cases, results) if not p.error]
    aspects = {p.name: _aspects(p) for p in left}
    wanted = set[str]().union(*aspects.values())
    total = len(wanted)
    chosen: list[Program] = []

    def worth(program: Program) -> float:
        # results take about as much room as inputs; the text is small, as it repeats
        cost = 500 + sum(b.nbytes for b in program.buffers)
        return len(wanted & aspects[program.name]) / cost

    while wanted:
        best = max(left, key=worth)
        left.remove(best)
        chosen.append(best)
        wanted -= aspects[best.name]
    have = Counter(p.family for p in chosen)
    for program in left:
        if have[program.family] < LEAST:
            have[program.family] += 1
            chosen.append(program)
    chosen.sort(key=lambda p: p.name)
    save(VECTORS, chosen, preset=9)
    size = VECTORS.stat().st_size
    print(f"{len(chosen)} programs, {total} opcodes or parts of them, {size} bytes")
    if size > VECTOR_BYTES:
        raise SystemExit(f"the vectors take {size} bytes, {VECTOR_BYTES} are allowed")


def table(pairs: list[tuple[Path, Path]]) -> None:
    """Write the page: programs, instructions, differences, findings."""
    programs: Counter[str] = Counter()
    compared: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    opcodes: dict[str, set[str]] = {name: set() for name in suite.FAMILIES}
    for cases, results in pairs:
        for program in together(cases, results):
            outcome = judged(program)
            family = program.family
            programs[family] += 1
            refused[family] += outcome.refused
            bad[family] += bool(outcome.problems)
            compared[family] += sum(c.count for c in program.columns if not program.error)
            opcodes[family] |= {_kind(opcode) for opcode in program.covers}
    rows = [
        f"| {name} | {programs[name]} | {len(opcodes[name])} | {compared[name]:,} | "
        f"{refused[name] or ''} | {FIRST_RUN.get(name, ('', ''))[0]} | "
        f"{FIRST_RUN.get(name, ('', ''))[1]} | {bad[name]} |"
        for name in suite.FAMILIES
    ]
    total = len(set().union(*opcodes.values()))
    rows.append(
        f"| **all** | **{programs.total()}** | **{total}** | **{compared.total():,}** | "
        f"**{refused.total()}** | **{sum(a for a, _ in FIRST_RUN.values())}** | "
        f"**{sum(b for _, b in FIRST_RUN.values())}** | **{bad.total()}** |"
    )
    listed = [
        f"- **{name}**: " + ", ".join(f"`{o}`" for o in sorted({o.split(".")[0] for o in ops}))
        for name, ops in opcodes.items()
    ]
    found = [f"| {' | '.join(row)} |" for row in FINDINGS]
    PAGE.write_text(
        _PAGE.format(rows="\n".join(rows), found="\n".join(found), listed="\n".join(listed)),
        encoding="utf-8",
    )
    print(f"{PAGE.name}: {programs.total()} programs, {bad.total()} differ")


_PAGE = """# The emulator against an H200

Most of the emulated machine is shared between sm_90a and sm_100a. `test/differential/` generates
PTX for that part from a seed, runs it on a Hopper GPU and on the emulator, and compares what both
leave in memory: bit for bit, except for the payload and sign of a NaN (PTX leaves them open) and for
`.approx` functions, which stay within the error that the PTX ISA documents. Products of
`mma.sync` and `wgmma` are compared exactly, in the emulator's "fused" mode. This page is written by
`python test/differential/run.py table`.

Measured on one NVIDIA H200, driver 580.159.04 (whose assembler compiled the PTX), with the seeds
20261121 and 4711.

| family | programs | opcodes | values compared | stop both | differed at first | unknown at first | differ now |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{rows}

"Opcodes" counts full spellings with types and modifiers. "Differed" and "unknown at first" are
programs of the first run (seed 20261121) that gave another result, or used an instruction that the
emulator did not know (for bulk copies: that stopped the GPU).

Two kinds of programs hold the machine's protocols rather than its arithmetic: every tensor map is
encoded a second time from the description of its bits and compared with the driver's 128 bytes, and
programs that stop the GPU must stop the emulator as well ("stop both").

## What was found, and how it was resolved

"Emulator": fixed there, with a test in `test/differential/test_findings.py`. "Program": the program
asked for something that PTX does not define, or the assembler's own doing; it is not generated any
more.

| where | difference | decided from | resolved |
| --- | --- | --- | --- |
{found}

## Recorded vectors

`test/differential/vectors/h200.xz` holds programs with inputs and results that cover every opcode;
`test/differential/test_vectors.py` replays them on the emulator without a GPU, as part of
`make test`.

## Run it again

```
python test/differential/run.py generate out/cases.xz --seed 20261121
python test/differential/gpu.py out/cases.xz out/results.xz      # where the GPU is: needs numpy, cuda-python
python test/differential/run.py compare out/cases.xz out/results.xz
```

## Instructions by family

{listed}

## What is not compared

Instructions that only sm_100a has (all of `tcgen05`, `f32x2`, three-operand `min`/`max`, 4- and 6-bit
types, stochastic rounding, cluster launch control), im2col and interleaved tensor maps, sparse
`mma` and `wgmma`, `f64` and 1-bit matrix products, video instructions, device functions, textures.
Raw bits of mbarriers and of their tokens, other than the parity and the pending count, are opaque in
PTX and are not compared. Timing is not modelled.
"""


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=("generate", "compare", "record", "table"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--seed", type=int, default=suite.SEED)
    args = parser.parse_args()
    files: list[Path] = args.files
    if args.command == "generate":
        programs = list(suite.generate(args.seed))
        save(files[0], programs, preset=2)
        print(f"{len(programs)} programs")
        return 0
    if len(files) % 2:
        parser.error(f"{args.command} takes pairs of cases and results, got {len(files)} files")
    if args.command == "compare":
        return compare(files[0], files[1])
    if args.command == "record":
        record(files[0], files[1])
    else:
        table(list(zip(files[::2], files[1::2], strict=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
