"""Runs kernels from elsewhere on the emulator and judges their numbers; `make conformance` runs this.

    python test/validation/conformance/run.py                       every case: fair and under 20 adversarial seeds
    python test/validation/conformance/run.py --only fa4,gemm-2cta  cases whose name contains one of the texts
    python test/validation/conformance/run.py --seeds 3 --check none
    python test/validation/conformance/run.py --only NAME --seeds 0 --strict    what docs/findings.md says of a kernel
    python test/validation/conformance/run.py --minutes 30          begins no further run after half an hour
    python test/validation/conformance/run.py --resume              does not repeat the right runs of earlier commands
    python test/validation/conformance/run.py --write               also puts the rows into docs/lab/emulator.md
    python test/validation/conformance/run.py --list                names only
    python test/validation/conformance/run.py --record              makes the records alone, and runs nothing

A case is compiled and recorded on the spot by the package it comes from, in an environment of its own (`.venv-peers`,
made when missing; needs a C compiler, 3 GB of disk and no GPU). Records lie in `build/conformance` and are made again when
the case, the recorder or a package's version changes. Runs that are right, or wrong as the case is known to be, are noted
in `build/conformance.jsonl`; `--resume` takes those that the same emulator made of the same record. Checkers watch every run
but the first, which is fair and tells the speed.

One machine can record and another judge: `--record --records DIR` here; DIR goes there, where `--records DIR --journal FILE`
needs neither compiler nor packages; FILE comes back, and `--resume --journal FILE --write` makes the table of it.

Exit code: 0 when every run gave the right numbers and no finding that the case is not known for, else 1; a case
with a fault that docs/findings.md explains may go wrong where that says so.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from attn_mlir.validation.conformance.cases import CASES, Case, case_named
from attn_mlir.validation.conformance.judging import Verdict, judge, operands
from attn_mlir.validation.conformance.kernel import Fault, Kernel
from attn_mlir.validation.conformance.recorded import (
    HERE,
    RECORDS,
    ROOT,
    SILICON,
    Recorded,
    Schedule,
    execute,
    recorded,
    stamp_of,
)
from attn_mlir.validation.journal import Journal

PAGE = ROOT / "docs" / "lab" / "emulator.md"
JOURNAL = ROOT / "build" / "conformance.jsonl"
JUDGES = (ROOT / "runtime" / "emulator", HERE)
LOG_EVERY = 20  # runs per line where the output is a file
SEEDS = 20  # adversarial ones by default
BEGIN, END = "<!-- conformance: begin -->", "<!-- conformance: end -->"


@dataclass(frozen=True)
class Outcome:
    """One run of a case; `reason` is empty when every element is right."""

    schedule: str
    reason: str
    seconds: float
    warp_instructions: int
    verdicts: tuple[Verdict, ...]

    def expected(self, fault: Fault | None) -> bool:
        """Whether the run is right, or wrong as the fault of its case makes it."""
        return not self.reason or (fault is not None and self.schedule.startswith(fault.schedules))

    @staticmethod
    def of(fields: dict[str, Any]) -> Outcome:
        """The outcome that `dataclasses.asdict` made fields of."""
        return Outcome(**{**fields, "verdicts": tuple(Verdict(**v) for v in fields["verdicts"])})


@dataclass(frozen=True)
class Run:
    """A schedule, which checkers watch (all, none or names), and whether known findings count."""

    schedule: Schedule
    check: str
    strict: bool = False

    @property
    def name(self) -> str:
        """`fair`, or `fair with checkers`."""
        watched = "" if self.check == "none" else " with checkers"
        return self.schedule.name + watched + (", all findings" if self.strict else "")


def planned(schedules: Sequence[Schedule], check: str, *, strict: bool = False) -> list[Run]:
    """The runs of a case: first a fair one without checkers, whose time is told."""
    runs = [Run(schedule, check, strict) for schedule in schedules]
    plain = Run(Schedule("fair"), "none")
    return runs if plain in runs else [plain, *runs]


def fault_of(case: Case) -> Fault | None:
    """What the case is known to get wrong."""
    return case.fault if isinstance(case, Kernel) else None


def run_one(name: str, run: Run, records: Path) -> Outcome:
    """One run of a record of the folder; every exception becomes the reason of a failed outcome."""
    case = case_named(name)
    try:
        record = recorded(case, print, records)
        done = execute(record, operands(case), run.schedule, run.check, strict=run.strict)
        verdicts = tuple(judge(case, done.arrays))
    except Exception as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        return Outcome(run.name, text, 0.0, 0, ())
    reason = "; ".join(str(verdict) for verdict in verdicts if not verdict.ok)
    return Outcome(run.name, reason, done.seconds, done.warp_instructions, verdicts)


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    case: Case
    ptx_lines: int
    outcomes: list[Outcome]
    left_out: int = 0  # runs that did not begin in time

    @property
    def passed(self) -> int:
        """Runs with the right numbers."""
        return sum(not outcome.reason for outcome in self.outcomes)

    @property
    def fault(self) -> Fault | None:
        """What the case is known to get wrong."""
        return fault_of(self.case)

    @property
    def failures(self) -> list[Outcome]:
        """Wrong runs that the case's fault does not explain."""
        return [outcome for outcome in self.outcomes if not outcome.expected(self.fault)]

    def cells(self) -> list[str]:
        """Package, kernel, PTX lines, warp-instructions, seconds, errors, runs."""
        first = self.outcomes[0]
        worst: dict[str, Verdict] = {}
        for outcome in self.outcomes:
            for verdict in outcome.verdicts:
                known = worst.get(verdict.output)
                if known is None or verdict.ratio > known.ratio:
                    worst[verdict.output] = verdict
        return [
            self.case.package,
            self.case.title,
            f"{self.ptx_lines:,}",
            f"{first.warp_instructions:,}",
            f"{first.seconds:.2f}",
            ", ".join(f"{v.output} {v.error:.1e} ({v.ratio:.2f})" for v in worst.values()),
            f"{self.passed} of {len(self.outcomes)}"
            + (f" ({self.left_out} not run)" if self.left_out else "")
            + (f": {self.fault.what}" if self.fault else ""),
        ]


HEADINGS = ("package", "kernel", "PTX lines", "warp-instr.", "seconds", "errors", "runs right")


def run_all(
    cases: Sequence[Case],
    runs: Sequence[Run],
    jobs: int,
    seconds: float,
    console: Console,
    journal: Journal,
    *,
    resume: bool,
    records: Path = RECORDS,
) -> tuple[list[Row], dict[str, str], list[str]]:
    """Every case in every run, in processes of their own; the fair runs while later cases are compiled.

    Args:
      seconds: after which no run begins.
      journal: gets the expected runs. resume: those that it has are not run again.
      records: the folder of the records.

    Returns:
      A row per case; versions of the packages by name; a line for each case that has no record.
    """

    def tell(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    fair = [run for run in runs if run.schedule.kind == "fair"]
    others = [run for run in runs if run not in fair]
    context = multiprocessing.get_context("spawn")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    started: dict[str, tuple[Recorded, list[Future[Outcome]]]] = {}
    stamps: dict[str, str] = {}
    deadline = time.monotonic() + seconds
    rows: list[Row] = []
    packages: dict[str, str] = {}
    failures: list[str] = []
    with (
        ProcessPoolExecutor(jobs, mp_context=context) as pool,
        Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar,
    ):
        task = bar.add_task("runs", total=len(cases) * len(runs))

        def advance(name: str, future: Future[Outcome]) -> None:
            if future.cancelled():
                return
            outcome = future.result()
            if outcome.reason:
                tell(f"{name}, {outcome.schedule}: {outcome.reason.splitlines()[0]}")
            if outcome.expected(fault_of(case_named(name))):
                journal.add(asdict(outcome), stamps[name], name, outcome.schedule)
            bar.advance(task)
            done = int(bar.tasks[task].completed)
            if not console.is_terminal and done % LOG_EVERY == 0:
                tell(f"{done} of {len(cases) * len(runs)} runs")

        def submit(name: str, run: Run) -> None:
            known = journal.find(stamps[name], name, run.name) if resume else None
            if known is not None:
                done: Future[Outcome] = Future()
                done.set_result(Outcome.of(known))
                started[name][1].append(done)
                bar.advance(task)
                return
            future = pool.submit(run_one, name, run, records)
            future.add_done_callback(partial(advance, name))
            started[name][1].append(future)

        for case in cases:
            try:
                record = recorded(case, tell, records)
            except RuntimeError as error:
                failures.append(f"{case.name}: {error}")
                continue
            packages |= record.packages
            started[case.name] = record, []
            stamps[case.name] = stamp_of(case)
            for run in fair:
                submit(case.name, run)
        for run, name in product(others, started):
            submit(name, run)
        every = [future for _, futures in started.values() for future in futures]
        wait(every, max(0.0, deadline - time.monotonic()))
        for future in every:
            future.cancel()
        for record, futures in started.values():
            outcomes = [future.result() for future in futures if not future.cancelled()]
            if not outcomes:
                failures.append(f"{record.case.name}: no time was left for it")
                continue
            row = Row(record.case, record.ptx_lines, outcomes, len(futures) - len(outcomes))
            cells = row.cells()
            tell(
                f"{row.case.name:24} {cells[3]:>9} warp-instructions {cells[4]:>6} s  {cells[5]}"
                f"  {cells[6]}"
            )
            rows.append(row)
    return rows, packages, failures


def record_all(cases: Sequence[Case], folder: Path, tell: Callable[[str], None]) -> int:
    """Makes the records of the cases; how many could not be made, each with a line that says why."""
    failed = 0
    for case in cases:
        try:
            recorded(case, tell, folder)
        except RuntimeError as error:
            failed += 1
            tell(f"{case.name}: {error}")
    return failed


def summary(runs: Sequence[Run]) -> str:
    """Names of the schedules, those without checkers first."""
    plain = [run.schedule.name for run in runs if run.check == "none"]
    watched = [run.schedule.name for run in runs if run.check != "none"]
    parts = [(plain, "without checkers"), (watched, "with checkers")]
    return "; ".join(f"{', '.join(names)} {how}" for names, how in parts if names)


def markdown(rows: Sequence[Row], packages: dict[str, str], runs: Sequence[Run]) -> str:
    """The table for the page."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))
    lines = [
        f"Packages: {versions}. Runs: {summary(runs)}.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "| --- | --- | ---: | ---: | ---: | --- | --- |",
    ]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines)


def merged(old: str, new: str) -> str:
    """The old table with the rows of the new one, which replace those of the same package and kernel."""

    def key(line: str) -> tuple[str, ...]:
        return tuple(line.split(" | ")[:2])

    rows = {key(line): line for line in new.splitlines()[4:]}
    lines = [rows.pop(key(line), line) for line in old.strip().splitlines()]
    return "\n".join([*lines, *rows.values()])


def write_page(text: str, page: Path = PAGE, *, every: bool = True) -> None:
    """Put the table between its markers.

    Args:
      every: the table has every case, and is not merged with what is there.

    Raises:
      SystemExit: the page has no markers.
    """
    old = page.read_text()
    head, begin, rest = old.partition(BEGIN)
    table, end, tail = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{page} has no place for the table: {BEGIN} and {END}")
    text = text if every else merged(table, text)
    page.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", metavar="TEXTS", help="comma-separated parts of names"
    )
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help=f"adversarial ones, from 0 (default {SEEDS})"
    )
    parser.add_argument("--schedules", default="", help="instead: fair,adv7,...")
    parser.add_argument(
        "--check",
        default=SILICON,
        help=f"checkers that watch: {SILICON} (default), all, none, names",
    )
    parser.add_argument(
        "--strict", action="store_true", help="findings that a case is known for are wrong too"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument(
        "--minutes", type=float, default=600, help="after which no run begins (default 600)"
    )
    parser.add_argument("--resume", action="store_true", help="do not repeat known right runs")
    parser.add_argument(
        "--write", action="store_true", help="put the rows into docs/lab/emulator.md"
    )
    parser.add_argument("--list", action="store_true", help="names only")
    parser.add_argument("--record", action="store_true", help="make the records, and run nothing")
    parser.add_argument("--records", type=Path, default=RECORDS, help="where the records are kept")
    parser.add_argument("--journal", type=Path, default=JOURNAL, help="where runs are kept")
    args = parser.parse_args()
    if args.jobs < 1 or args.seeds < 0:
        parser.error(
            f"--jobs must be positive and --seeds not negative, got {args.jobs}, {args.seeds}"
        )
    try:
        names = args.schedules.split(",") if args.schedules else []
        args.schedules = [Schedule.named(name) for name in names] or [
            Schedule("fair"),
            *(Schedule("adversarial", seed) for seed in range(args.seeds)),
        ]
    except ValueError as error:
        parser.error(str(error))
    texts = args.only.split(",")
    args.cases = [case for case in CASES if any(text in case.name for text in texts)]
    if not args.cases:
        parser.error(f"no case is named like {args.only!r}; --list shows all")
    return args


def main() -> None:
    args = arguments()
    console = Console()
    if args.list:
        for case in args.cases:
            console.print(f"{case.name:26} {case.package:14} {case.title}", highlight=False)
        return
    if args.record:
        sys.exit(1 if record_all(args.cases, args.records, print) else 0)
    begin = time.perf_counter()
    runs = planned(args.schedules, args.check, strict=args.strict)
    rows, packages, failures = run_all(
        args.cases,
        runs,
        args.jobs,
        60 * args.minutes,
        console,
        Journal(args.journal, JUDGES),
        resume=args.resume,
        records=args.records,
    )
    for row in rows:
        failures += [
            f"{row.case.name}, {outcome.schedule}: {outcome.reason}" for outcome in row.failures
        ]
    for failure in failures:
        console.print(failure, highlight=False, markup=False, soft_wrap=True)
    count = sum(len(row.outcomes) for row in rows)
    seconds = time.perf_counter() - begin
    console.print(f"{sum(row.passed for row in rows)} of {count} runs right, {seconds:.0f} s")
    if args.write and not failures:
        write_page(markdown(rows, packages, runs), every=not args.only)
        console.print(f"the table is in {PAGE.relative_to(ROOT)}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
