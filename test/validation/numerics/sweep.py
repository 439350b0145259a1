"""Checks every attention case on the emulator under every schedule; `make numerics` runs this.

    python test/validation/numerics/sweep.py                                   everything (resumes where it stopped)
    python test/validation/numerics/sweep.py --only d128-bf16-causal --jobs 4  cases whose name contains the text
    python test/validation/numerics/sweep.py --only 300x77 --schedules fair,adv3
    python test/validation/numerics/sweep.py --list                            names only

Results lie in `build/numerics/results.jsonl`, one line per run, each with a key made of the kernel's PTX and the sources
of the emulator, the reference and this folder: a run is repeated when any of them changed, or with --fresh. Exit code: 0
when every selected run passed, 1 when one failed, 2 for a wrong option.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import defaultdict
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from attn_mlir.validation.numerics.mha_cases import SCHEDULES, Case, Schedule, all_cases, case_named

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "build" / "numerics" / "results.jsonl"
LOG_EVERY = 20  # runs per line where the output is a file
RUN_LIMIT_SECONDS = 900  # the slowest case takes about a minute; a run beyond this does not end


@dataclass(frozen=True)
class Result:
    """Outcome of one run. Errors are ratios to what is allowed; `reason` is empty when it passed."""

    case: str
    schedule: str
    key: str
    reason: str
    o_ratio: float
    lse_ratio: float
    warp_instructions: int
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.reason


class TookTooLongError(Exception):
    """A run went past RUN_LIMIT_SECONDS."""


def _alarm(*_: object) -> None:
    raise TookTooLongError(f"no end after {RUN_LIMIT_SECONDS} s")


def run_one(case_name: str, schedule_name: str, key: str) -> Result:
    """One run in a worker process; every exception becomes a failed result."""
    from attn_mlir.validation.numerics import mha_check

    begin = time.perf_counter()
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _alarm)
        signal.alarm(RUN_LIMIT_SECONDS)
    try:
        outcome = mha_check.check(case_named(case_name), Schedule.named(schedule_name))
        verdict, instructions = outcome.verdict, outcome.warp_instructions
        reason, ratios = verdict.reason, (verdict.o_ratio, verdict.lse_ratio)
    except Exception:
        reason, instructions, ratios = traceback.format_exc(), 0, (float("inf"), float("inf"))
    finally:
        if hasattr(signal, "SIGALRM"):
            signal.alarm(0)
    seconds = time.perf_counter() - begin
    return Result(case_name, schedule_name, key, reason, *ratios, instructions, seconds)


def read_results(path: Path) -> dict[tuple[str, str], Result]:
    """The newest result per case and schedule; a torn last line is left out."""
    found: dict[tuple[str, str], Result] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                result = Result(**json.loads(line))
            except (ValueError, TypeError):
                continue
            found[result.case, result.schedule] = result
    return found


def select(only: list[str], schedules: str) -> list[tuple[Case, Schedule]]:
    """The runs that the options name, cheapest lengths first, schedules of a case together."""
    chosen = SCHEDULES
    if schedules:
        chosen = tuple(Schedule.named(name) for name in schedules.split(","))
    cases = [case for case in all_cases() if all(text in case.name for text in only)]
    return [(case, schedule) for case in cases for schedule in chosen]


def summary(results: list[Result]) -> Table:
    """One row per kernel: runs, the largest error and LSE error relative to what is allowed, time."""
    shown = Table(title="largest error relative to what is allowed", title_justify="left")
    shown.add_column("kernel")
    for heading in ("passed", "O", "LSE", "warp-instructions", "seconds"):
        shown.add_column(heading, justify="right")
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.case.rpartition("-")[0]].append(result)
    for kernel, runs in sorted(groups.items()):
        passed = sum(run.passed for run in runs)
        shown.add_row(
            kernel,
            f"{passed} of {len(runs)}",
            f"{max(run.o_ratio for run in runs):.2f}",
            f"{max(run.lse_ratio for run in runs):.2f}",
            f"{sum(run.warp_instructions for run in runs):,}",
            f"{sum(run.seconds for run in runs):.0f}",
            style="" if passed == len(runs) else "red",
        )
    return shown


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="part of names")
    parser.add_argument("--schedules", default="", metavar="LIST", help="of fair and advN")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--fresh", action="store_true", help="repeat what already passed")
    parser.add_argument("--stop", action="store_true", help="stop at the first failure")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    return parser.parse_args()


def work(
    pending: list[tuple[Case, Schedule, str]], jobs: int, stop: bool, console: Console
) -> list[Result]:
    """Runs everything in `jobs` processes, writes each result down, shows progress and failures."""
    done: list[Result] = []
    failed = 0
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    context = multiprocessing.get_context("spawn")
    with (
        RESULTS.open("a") as journal,
        ProcessPoolExecutor(jobs, mp_context=context) as pool,
        Progress(*columns, TimeRemainingColumn(), console=console) as bar,
    ):
        task = bar.add_task("numerics", total=len(pending))
        waiting: set[Future[Result]] = {
            pool.submit(run_one, case.name, schedule.name, key) for case, schedule, key in pending
        }
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in finished:
                result = future.result()
                journal.write(json.dumps(asdict(result)) + "\n")
                journal.flush()
                done.append(result)
                failed += not result.passed
                if not result.passed:
                    last = result.reason.strip().splitlines()[-1]
                    line = f"FAILED {result.case} {result.schedule}: {last}"
                    console.print(line, markup=False, soft_wrap=True)
                if not console.is_terminal and len(done) % LOG_EVERY == 0:
                    console.print(f"{len(done)} of {len(pending)} runs, {failed} failed")
                bar.update(task, advance=1, description=f"{result.case} ({failed} failed)")
            if stop and failed:
                pool.shutdown(cancel_futures=True)
                break
    return done


def main() -> int:
    args = arguments()
    console = Console()
    try:
        runs = select(args.only, args.schedules)
    except ValueError as error:
        print(f"--schedules: {error}", file=sys.stderr)
        return 2
    if not runs or args.jobs < 1:
        print(
            "nothing selected: see --list" if not runs else "--jobs must be 1 or more",
            file=sys.stderr,
        )
        return 2
    if args.list:
        print("\n".join(f"{case.name} {schedule.name}" for case, schedule in runs))
        return 0
    from attn_mlir.validation.numerics import mha_check

    known = {} if args.fresh else read_results(RESULTS)
    kernels = {(c.head_dim, c.dtype, c.mask, c.heads, c.kv_heads): c for c, _ in runs}
    with console.status(f"compiling {len(kernels)} kernels"):
        keys = {kernel: mha_check.key(case) for kernel, case in kernels.items()}
    kept: list[Result] = []
    pending: list[tuple[Case, Schedule, str]] = []
    for case, schedule in runs:
        key = keys[case.head_dim, case.dtype, case.mask, case.heads, case.kv_heads]
        old = known.get((case.name, schedule.name))
        if old and old.passed and old.key == key:
            kept.append(old)
        else:
            pending.append((case, schedule, key))
    console.print(f"{len(runs)} runs, {len(kept)} already passed, {args.jobs} processes")
    results = kept + work(pending, args.jobs, args.stop, console)
    console.print(summary(results))
    failures = [result for result in results if not result.passed]
    for result in failures:
        print(f"\n{result.case} {result.schedule}:\n{result.reason}")
    console.print(f"{len(results) - len(failures)} of {len(runs)} runs passed")
    return 0 if not failures and len(results) == len(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
