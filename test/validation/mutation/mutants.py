"""Plants mistakes in kernels and counts who notices: `make mutants`.

    python test/validation/mutation/mutants.py                          a sample over our kernels and FlashAttention-4's
    python test/validation/mutation/mutants.py --only ours-             subjects whose name contains one of the texts
    python test/validation/mutation/mutants.py --per-operator 0         every mutant
    python test/validation/mutation/mutants.py --write                  also puts the table into docs/lab/emulator.md

A mutant is caught when a checker names it, when the emulator stops it (a fault, a deadlock), or
when the numbers are wrong, under the fair or some adversarial schedule. What is not caught is
listed, with the evidence where the mutant is no mistake. Exits with 1 when fewer than `--required`
percent of the others are caught.

Outcomes go to a journal as they come; a run that was interrupted goes on where it stopped, as long
as neither the kernels nor the emulator nor this folder changed. FlashAttention-4 is compiled in an
environment of its own (`make conformance` describes it).
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from pathlib import Path

from attn_mlir.errors import AttnError
from attn_mlir.runtime.emulator import DeadlockError, KernelFault
from attn_mlir.runtime.emulator.checkers import CheckError
from attn_mlir.validation.journal import Journal
from attn_mlir.validation.mutation.evidence import Evidence, covered, evidence_of, unread
from attn_mlir.validation.mutation.operators import OPERATORS, Mutant, mutants_of
from attn_mlir.validation.mutation.outcomes import Outcome, page, score, write_page
from attn_mlir.validation.mutation.subjects import OURS, Outputs, Subject
from attn_mlir.validation.numerics.mha_cases import Schedule

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SCHEDULES = (Schedule("fair"), *(Schedule("adversarial", seed) for seed in range(1, 7)))
EXCUSED_SCHEDULES = SCHEDULES[:3]  # for mutants that the evidence says change nothing
SECONDS = 120  # a run that takes longer counts as caught: it hangs
JOURNAL = ROOT / "build" / "mutants.jsonl"
JUDGES = (ROOT / "runtime" / "emulator", HERE)
PEERS = {"fa4-d128-causal-odd": 0, "fa4-d128-full": 0}  # -> CTAs to launch; 0: its own grid


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
    reason = evidence.reason(mutant)
    caught, detail, name = "", "", ""
    for schedule in EXCUSED_SCHEDULES if reason else SCHEDULES:
        caught, detail = verdict(subject, changed, schedule)
        if caught:
            name, reason = schedule.name, ""
            break
    if not caught and not reason:

        def launch(text: str) -> Outputs:
            return subject.launch(text, SCHEDULES[0])

        reason = covered(subject.ptx, mutant, launch) or unread(subject.ptx, mutant, launch)
    return Outcome(
        subject.name, mutant.operator, mutant.line, mutant.original, caught, detail, name, reason
    )


def sample(mutants: list[Mutant], per_operator: int, seed: int) -> list[Mutant]:
    """At most `per_operator` mutants of each operator, chosen by the seed; all of them for 0."""
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


def _work(job: tuple[str, Mutant]) -> Outcome:
    subject, evidence = _worker[job[0]]
    return judge(subject, job[1], evidence)


def _peer(name: str, ctas: int) -> Callable[[], Subject]:
    def make() -> Subject:
        from attn_mlir.validation.mutation.peers import peer  # needs the environment of the peers

        return peer(name, ctas)

    return make


def all_subjects(texts: list[str]) -> list[Subject]:
    """Our kernels and the peers' whose names contain one of the texts."""
    makers = OURS | {name: _peer(name, ctas) for name, ctas in PEERS.items()}
    return [make() for name, make in makers.items() if any(text in name for text in texts)]


def identity(subject: Subject, mutant: Mutant) -> tuple[str, ...]:
    """What an outcome is of."""
    return subject.name, mutant.operator, mutant.apply(subject.ptx)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", metavar="TEXTS", help="comma-separated parts of names"
    )
    parser.add_argument("--per-operator", type=int, default=2, metavar="N", help="0 for all")
    parser.add_argument("--operator", nargs="*", choices=sorted(OPERATORS), help="only these")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--required", type=float, default=95.0, metavar="PERCENT")
    parser.add_argument("--journal", type=Path, default=JOURNAL, help="where outcomes are kept")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/lab/emulator.md"
    )
    args = parser.parse_args()
    if args.jobs < 1 or args.per_operator < 0:
        parser.error(
            f"--jobs is positive, --per-operator not negative: {args.jobs}, {args.per_operator}"
        )
    if args.write and (args.only or args.operator):
        parser.error("--write needs all subjects and operators: no --only, no --operator")
    return args


def main() -> None:
    args = _arguments()
    begin = time.perf_counter()
    journal = Journal(args.journal, JUDGES)
    outcomes: list[Outcome] = []
    jobs: list[tuple[str, Mutant]] = []
    for subject in all_subjects(args.only.split(",")):
        mutants = mutants_of(subject.ptx, subject.executed_lines())
        if args.operator:
            mutants = [mutant for mutant in mutants if mutant.operator in args.operator]
        _worker[subject.name] = prepare(subject)
        for mutant in sample(mutants, args.per_operator, args.seed):
            known = journal.find(*identity(subject, mutant))
            if known is None:
                jobs.append((subject.name, mutant))
            else:
                outcomes.append(Outcome(**known))
    print(f"{len(jobs)} mutants to run, {len(outcomes)} known from {args.journal}", flush=True)
    context = multiprocessing.get_context("fork")  # the workers have the subjects
    with context.Pool(args.jobs) as pool:
        for number, ((name, mutant), outcome) in enumerate(
            zip(jobs, pool.imap(_work, jobs), strict=True), 1
        ):
            outcomes.append(outcome)
            journal.add(asdict(outcome), *identity(_worker[name][0], mutant))
            seconds = time.perf_counter() - begin
            print(f"{number}/{len(jobs)} {seconds:.0f} s {outcome}", flush=True)
    seconds = time.perf_counter() - begin
    text = page(outcomes, date.today(), seconds, args.per_operator, len(SCHEDULES) - 1)
    print(f"\n{text}\n")
    if args.write:
        write_page(text, ROOT / "docs" / "lab" / "emulator.md")
    percent = score(outcomes)
    if percent < args.required:
        sys.exit(f"caught {percent:.1f} % of the mistakes, {args.required} % are required")


if __name__ == "__main__":
    main()
