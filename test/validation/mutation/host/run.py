"""Plants faults in the host's Python and counts which of them tests notice: part of `make mutants`.

    python test/validation/mutation/host/run.py                      200 faults of `frontend` and `runtime`, seed 0
    python test/validation/mutation/host/run.py --count 40 --seed 1  fewer, and others
    python test/validation/mutation/host/run.py --only frontend/api  in files whose path contains one of the texts
    python test/validation/mutation/host/run.py --list               what would be planted, and which tests come first

Each fault is planted in a copy of the repository, and the tests near its file are run there: those of its
name, the tables of effects and choices, those that import it, then those further off, until one fails that
passes without the fault. What no test notices is listed by area. A fault that changes nothing stands in
`equivalent.txt` with its reason. Exits with 1 when fewer than `--required` percent of the others are caught.

Outcomes go to a journal as they come; a run that was interrupted goes on where it stopped, as long as neither
the sources nor the tests changed. The repository itself is never written to.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from attn_mlir.validation.journal import Journal
from attn_mlir.validation.mutation.host.copies import Copy, copies_of
from attn_mlir.validation.mutation.host.faults import Fault, all_faults, drawn
from attn_mlir.validation.mutation.host.nearest import Imports

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
EQUIVALENT = HERE / "equivalent.txt"
JOURNAL = ROOT / "build" / "host-mutants.jsonl"
JUDGES = tuple(ROOT / folder for folder in ("frontend", "runtime", "test"))
SECONDS = 240.0  # for one stage of tests
CAUGHT, MISSED, UNDECIDED = "caught", "missed", "out of time"


@dataclass(frozen=True)
class Outcome:
    """What became of a fault.

    Attributes:
      identity, area, text: of the fault.
      state: `CAUGHT`, `MISSED`, or `UNDECIDED`: no test failed, but not all came to their end.
      test: the first one that failed.
      seconds: that it took.
    """

    identity: str
    area: str
    text: str
    state: str
    test: str
    seconds: float

    def __str__(self) -> str:
        what = f"caught by {self.test}" if self.state == CAUGHT else self.state.upper()
        return f"{self.identity}: {what} ({self.seconds:.0f} s)"


class Judge:
    """Runs the tests near a fault until one notices it.

    Args:
      stages: of test files, by the path of a source.
      seconds: for one stage.
    """

    def __init__(self, imports: Imports, seconds: float):
        self._imports, self._seconds = imports, seconds
        self._right: dict[str, bool] = {}  # whether a test passes without any fault

    def __call__(self, fault: Fault, copy: Copy) -> Outcome:
        """What becomes of a fault in a copy."""
        begin = time.perf_counter()
        state, test = MISSED, ""
        for stage in self._imports.stages(fault.path):
            with copy.planted(fault):
                ran = copy.run(stage, self._seconds)
            if not ran.in_time:
                state = UNDECIDED
            elif not ran.passed and self._passes_without(
                copy, [ran.failed] if ran.failed else stage
            ):
                state, test = CAUGHT, ran.failed or "every test"
                break
        seconds = time.perf_counter() - begin
        return Outcome(fault.identity, fault.area, fault.text, state, test, round(seconds, 1))

    def _passes_without(self, copy: Copy, tests: Sequence[str]) -> bool:
        """Whether these tests pass in a copy without a fault."""
        name = " ".join(tests)
        if name not in self._right:
            self._right[name] = copy.run(tests, self._seconds).passed
        return self._right[name]


def reasons(text: str) -> dict[str, str]:
    """The faults that are no mistakes, with the reason.

    Raises:
      ValueError: a line without a reason.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            identity, bar, reason = line.rpartition(" | ")
            if not bar or not reason.strip():
                raise ValueError(f"no reason is given: {line}")
            found[identity] = reason.strip()
    return found


def score(outcomes: Iterable[Outcome], known: dict[str, str]) -> float:
    """Percentage caught of the faults that are mistakes."""
    wrong = [x for x in outcomes if x.state == CAUGHT or x.identity not in known]
    return 100 * sum(x.state == CAUGHT for x in wrong) / max(1, len(wrong))


def report(outcomes: Sequence[Outcome], known: dict[str, str]) -> str:
    """Caught and missed by area, then what was missed, and what is no mistake."""
    lines = [
        "| area | faults | caught | no mistake | missed |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    areas = sorted({x.area for x in outcomes})
    for area in [*areas, "all"]:
        own = [x for x in outcomes if area in ("all", x.area)]
        caught = sum(x.state == CAUGHT for x in own)
        excused = sum(x.state != CAUGHT and x.identity in known for x in own)
        lines.append(
            f"| {area} | {len(own)} | {caught} | {excused} | {len(own) - caught - excused} |"
        )
    missed = [x for x in outcomes if x.state != CAUGHT and x.identity not in known]
    excused = [x for x in outcomes if x.state != CAUGHT and x.identity in known]
    lines += [f"\n{'Missed:' if missed else 'Nothing is missed.'}"]
    lines += [f"- {x.identity} -> {x.text} ({x.state})" for x in missed]
    lines += ["\nNo mistakes:", *(f"- {x.identity}: {known[x.identity]}" for x in excused)]
    return "\n".join(lines)


def judged(faults: Sequence[Fault], judge: Judge, jobs: int, journal: Journal) -> list[Outcome]:
    """The outcomes of all faults, those in the journal included."""
    found: list[Outcome] = []
    left: list[Fault] = []
    for fault in faults:
        known = journal.find(fault.identity, fault.text)
        if known is None:
            left.append(fault)
        else:
            found.append(Outcome(**known))
    print(f"{len(left)} faults to plant, {len(found)} known from {journal.path}", flush=True)
    begin = time.perf_counter()
    with copies_of(ROOT, min(jobs, max(len(left), 1))) as copies:
        free = SimpleQueue[Copy]()
        for copy in copies:
            free.put(copy)

        def work(fault: Fault) -> Outcome:
            copy = free.get()
            try:
                return judge(fault, copy)
            finally:
                free.put(copy)

        pool = ThreadPoolExecutor(len(copies))
        try:
            pending = {pool.submit(work, fault): fault for fault in left}
            for number, done in enumerate(as_completed(pending), 1):
                outcome = done.result()
                found.append(outcome)
                journal.add(asdict(outcome), outcome.identity, outcome.text)
                seconds = time.perf_counter() - begin
                print(f"{number}/{len(left)} {seconds:.0f} s {outcome}", flush=True)
        except BaseException:
            for copy in copies:
                copy.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", default="", metavar="TEXTS", help="comma-separated parts of paths"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one stage of tests")
    parser.add_argument("--required", type=float, default=95.0, metavar="PERCENT")
    parser.add_argument("--journal", type=Path, default=JOURNAL, help="where outcomes are kept")
    parser.add_argument("--list", action="store_true", help="plants nothing")
    args = parser.parse_args()
    if args.jobs < 1 or args.count < 1:
        parser.error(f"--jobs and --count are positive: {args.jobs}, {args.count}")
    return args


def main() -> None:
    """Draws, plants, judges, reports."""
    args = _arguments()
    texts = args.only.split(",")
    faults = [x for x in all_faults(ROOT) if any(text in x.path for text in texts)]
    chosen = drawn(faults, args.count, args.seed)
    imports = Imports(ROOT)
    if args.list:
        for fault in chosen:
            stages = " | ".join(", ".join(stage) for stage in imports.stages(fault.path))
            print(f"{fault.identity} -> {fault.text}\n    {stages}")
        return
    known = reasons(EQUIVALENT.read_text())
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell has them ignored
        signal.signal(number, signal.default_int_handler)
    try:
        outcomes = judged(
            chosen, Judge(imports, args.seconds), args.jobs, Journal(args.journal, JUDGES)
        )
    except KeyboardInterrupt:
        sys.exit(f"interrupted; what was found is in {args.journal}")
    percent = score(outcomes, known)
    print(f"\n{report(outcomes, known)}\n\ncaught {percent:.1f} % of those that are mistakes")
    if percent < args.required:
        sys.exit(f"{args.required} % are required")


if __name__ == "__main__":
    main()
