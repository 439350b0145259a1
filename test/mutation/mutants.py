"""Plants mistakes in kernels and counts who notices: `make mutants`.

    python test/mutation/mutants.py                              a sample over our kernels
    python test/mutation/mutants.py --recorded DIR/NAME ...      and over recorded launches
    python test/mutation/mutants.py --per-operator 0             every mutant

A mutant is caught when a checker names it, when the emulator stops it (a fault, a deadlock), or when the
numbers are wrong, under the fair or some adversarial schedule. What is not caught is listed, with the reason
where the mutant is no mistake. Exits with 1 when fewer than `--required` percent of the others are caught.
"""

# ruff: noqa: E402  (its folders have to be on the path before it can import from them)

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "numerics")]

import subjects
from evidence import Evidence, evidence_of
from mha_cases import Schedule
from operators import OPERATORS, Mutant, mutants_of
from subjects import Subject

from attn_mlir.errors import AttnError
from attn_mlir.runtime.emulator import DeadlockError, KernelFault
from attn_mlir.runtime.emulator.checkers import CheckError

SCHEDULES = (Schedule("fair"), *(Schedule("adversarial", seed) for seed in range(1, 7)))
SECONDS = 120  # a run that takes longer counts as caught: it hangs


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Attributes:
      caught: "checker", "fault", "deadlock", "numbers", "hang", or "" when nothing noticed.
      detail: the check or fault kind. schedule: under which schedule. reason: why it is no mistake.
    """

    subject: str
    operator: str
    line: int
    original: str
    caught: str
    detail: str
    schedule: str
    reason: str


class _TimeOut(Exception):
    pass


def _alarm(number: int, frame: object) -> None:
    raise _TimeOut


def verdict(subject: Subject, ptx: str, schedule: Schedule) -> tuple[str, str]:
    """How one run of a mutant is noticed, and the kind; ("", "") when it is not."""
    signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(SECONDS)
    try:
        wrong = subject.run(ptx, schedule)
    except CheckError as error:
        return "checker", error.kind
    except DeadlockError:
        return "deadlock", ""
    except KernelFault as error:
        return "fault", error.kind
    except AttnError as error:
        return "fault", type(error).__name__
    except _TimeOut:
        return "hang", ""
    finally:
        signal.alarm(0)
    return ("numbers", wrong.split(":")[0][:40]) if wrong else ("", "")


def judge(subject: Subject, mutant: Mutant, evidence: Evidence) -> Outcome:
    """Run a mutant under the schedules until something notices it."""
    changed = mutant.apply(subject.ptx)
    caught, detail, name = "", "", ""
    for schedule in SCHEDULES:
        caught, detail = verdict(subject, changed, schedule)
        if caught:
            name = schedule.name
            break
    reason = "" if caught else evidence.reason(mutant)
    return Outcome(
        subject.name,
        mutant.operator,
        mutant.line,
        mutant.original,
        caught,
        detail,
        name,
        reason,
    )


def sample(mutants: list[Mutant], per_operator: int, seed: int) -> list[Mutant]:
    """At most so many of each operator, chosen by seed; 0 for all."""
    if not per_operator:
        return mutants
    chooser = random.Random(seed)
    chosen: list[Mutant] = []
    for operator in OPERATORS:
        of_kind = [mutant for mutant in mutants if mutant.operator == operator]
        chosen += chooser.sample(of_kind, min(per_operator, len(of_kind)))
    return sorted(chosen, key=lambda mutant: (mutant.line, mutant.operator))


_worker: dict[str, tuple[Subject, Evidence]] = {}


def prepare(subject: Subject) -> tuple[Subject, Evidence]:
    """A subject with what its correct run shows."""
    return subject, evidence_of(lambda: subject.run(subject.ptx, SCHEDULES[0]))


def _start_worker(recorded: list[tuple[str, int]]) -> None:
    for subject in all_subjects(recorded):
        _worker[subject.name] = prepare(subject)


def _work(job: tuple[str, Mutant]) -> Outcome:
    subject, evidence = _worker[job[0]]
    return judge(subject, job[1], evidence)


def all_subjects(recorded: list[tuple[str, int]]) -> list[Subject]:
    """Our kernels and recorded ones, (path without suffix, CTAs or 0)."""
    return [
        *subjects.ours_all(),
        *(subjects.recorded(Path(stem), ctas=ctas) for stem, ctas in recorded),
    ]


def table(outcomes: list[Outcome]) -> str:
    """Markdown: operators by who caught their mutants."""
    columns = ("checker", "deadlock", "fault", "numbers", "hang")
    lines = [
        f"| mistake | mutants | {' | '.join(columns)} | no mistake | missed |",
        "|" + "---|" * (len(columns) + 4),
    ]

    def row(name: str, chosen: list[Outcome]) -> str:
        counts = Counter(o.caught for o in chosen)
        excused = sum(1 for o in chosen if not o.caught and o.reason)
        missed = counts[""] - excused
        cells = [str(counts[c] or "") for c in columns]
        return (
            f"| {name} | {len(chosen)} | {' | '.join(cells)} | {excused or ''} | {missed or ''} |"
        )

    for operator in OPERATORS:
        chosen = [o for o in outcomes if o.operator == operator]
        if chosen:
            lines.append(row(operator, chosen))
    lines.append(row("**all**", outcomes))
    return "\n".join(lines)


def score(outcomes: list[Outcome]) -> float:
    """Percentage caught of the mutants that are mistakes."""
    wrong = [o for o in outcomes if o.caught or not o.reason]
    return 100 * sum(1 for o in wrong if o.caught) / max(1, len(wrong))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recorded", nargs="*", default=[], metavar="DIR/NAME[:CTAS]")
    parser.add_argument("--per-operator", type=int, default=6, metavar="N", help="0 for all")
    parser.add_argument("--operator", nargs="*", choices=sorted(OPERATORS), help="only these")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--required", type=float, default=95.0, metavar="PERCENT")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every outcome there")
    return parser.parse_args()


def main() -> None:
    args = _arguments()
    recorded: list[tuple[str, int]] = []
    for item in args.recorded:
        stem, _, ctas = item.partition(":")
        recorded.append((stem, int(ctas or 0)))
    begin = time.perf_counter()
    jobs: list[tuple[str, Mutant]] = []
    for subject in all_subjects(recorded):
        mutants = mutants_of(subject.ptx, subject.executed_lines())
        if args.operator:
            mutants = [mutant for mutant in mutants if mutant.operator in args.operator]
        jobs += [(subject.name, m) for m in sample(mutants, args.per_operator, args.seed)]
    print(f"{len(jobs)} mutants", flush=True)
    outcomes: list[Outcome] = []
    with multiprocessing.Pool(args.jobs, _start_worker, (recorded,)) as pool:
        for outcome in pool.imap(_work, jobs):
            outcomes.append(outcome)
            if not outcome.caught:
                what = outcome.reason or "MISSED"
                print(
                    f"{outcome.subject} {outcome.operator}@{outcome.line}: {what}\n"
                    f"    {outcome.original[:110]}",
                    flush=True,
                )
    if args.json:
        records: list[dict[str, Any]] = [asdict(outcome) for outcome in outcomes]
        args.json.write_text(json.dumps(records, indent=1) + "\n")
    print(f"\n{table(outcomes)}\n")
    percent = score(outcomes)
    print(f"caught {percent:.1f} % of the mistakes, {time.perf_counter() - begin:.0f} s")
    if percent < args.required:
        sys.exit(f"{args.required} % are required")


if __name__ == "__main__":
    main()
