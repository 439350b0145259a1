"""What comes of a program that was on the GPU: run on the emulator, compared."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from attn_mlir.errors import LaunchError
from attn_mlir.validation.differential import emulate, tensormaps
from attn_mlir.validation.differential.case import Program, load, load_with_about
from attn_mlir.validation.differential.judge import differences

# Families that ask what no kernel asks: mbarriers about phases that are long over, with a time limit
# of zero. Checkers object, and an adversarial schedule lets the limit pass. Checkers object as well to
# threads that arrive on the cluster's barrier again before they wait.
PROBES = frozenset({"mbarrier", "cluster-ahead"})


@dataclass
class Outcome:
    """What came of one program.

    Attributes:
      refused: both the GPU and the emulator stopped.
      problems: text of every difference.
    """

    name: str
    refused: bool = False
    problems: list[str] = field(default_factory=list[str])


def judged(program: Program, adversaries: int = 0) -> Outcome:
    """Run a program with a GPU's results on the emulator and compare; tensor maps as well.

    Args:
      adversaries: how many adversarial schedules, watched by every checker, have to give the same.
    """
    outcome = Outcome(program.name)
    if program.name.split("/")[0] in PROBES:
        adversaries = 0
    for adversary in (None, *range(adversaries)):
        where = "" if adversary is None else f", adversarial seed {adversary}"
        try:
            emulated = emulate.run(program, adversary)
        except LaunchError as error:
            if program.error:
                outcome.refused = True
            else:
                outcome.problems.append(f"{program.name}{where}: the emulator stops: {error}")
            continue
        if program.error:
            outcome.problems.append(f"{program.name}{where}: the GPU stops: {program.error}")
            continue
        found = differences(program, program.results, emulated)
        outcome.problems += [f"{difference}{where}" for difference in found]
    if not program.error:
        for index, spec in enumerate(program.maps):
            address = program.addresses[spec.buffer] + spec.offset
            if tensormaps.encode(spec, address) != program.map_bytes[index]:
                outcome.problems.append(f"{program.name}: map {index}: the driver's bytes differ")
    return outcome


def together(cases: Path, results: Path) -> tuple[list[Program], dict[str, str]]:
    """Programs with what the GPU left behind, and which GPU that was.

    Raises:
      SystemExit: the results are not of these cases.
    """
    programs = load(cases)
    finished, about = load_with_about(results)
    if [p.name for p in programs] != [p.name for p in finished]:
        raise SystemExit(f"{results} is not of {cases}: the names of the programs differ")
    for program, result in zip(programs, finished, strict=True):
        program.results = result.results
        program.map_bytes, program.addresses = result.map_bytes, result.addresses
        program.error = result.error
    return programs, about


def judge_all(programs: Sequence[Program], adversaries: int, jobs: int) -> Iterator[Outcome]:
    """The outcomes in order, by `jobs` processes."""
    work = partial(judged, adversaries=adversaries)
    if jobs == 1:
        yield from map(work, programs)
        return
    with multiprocessing.Pool(jobs) as pool:
        yield from pool.imap(work, programs, chunksize=8)
