"""Runs drawn cases: anything but a right result or a typed error is a failure.

    python test/validation/fuzz/fuzz.py calls                     all cases of a kind
    python test/validation/fuzz/fuzz.py all --jobs 2              of every kind; `make numerics`
    python test/validation/fuzz/fuzz.py calls --first 17 --count 1

A kind is a module of this folder with `COUNT`, how many cases there are, and `attempt(number)`,
which draws one from its number alone, runs it and says in a line what became of it. A failure
prints the command that repeats it. Exit code: 0 when all passed, 1 when one failed, 2 for a wrong
option.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
os.environ.setdefault("ATTN_MLIR_CACHE_DIR", str(ROOT / "build" / "test-cache"))
os.environ.setdefault("ATTN_MLIR_CHECK", "all")
PROGRESS = 50  # cases between two lines


def kinds() -> list[str]:
    """The modules of this folder that draw cases."""
    return sorted(path.stem for path in HERE.glob("*.py") if "\ndef attempt(" in path.read_text())


def load(kind: str) -> ModuleType:
    """The module of a kind."""
    return importlib.import_module(f"attn_mlir.validation.fuzz.{kind}")


def command(kind: str, number: int) -> str:
    """The command that repeats a case."""
    return f"python test/validation/fuzz/fuzz.py {kind} --first {number} --count 1"


def outcome(kind: str, number: int) -> tuple[bool, str]:
    """Whether a case passed, and its line, or the command that repeats it and what came out."""
    try:
        return True, load(kind).attempt(number)
    except Exception:
        return False, f"{command(kind, number)}\n{traceback.format_exc().rstrip()}"


def run(kind: str, numbers: Iterable[int], jobs: int) -> int:
    """Runs cases of a kind; the number of failures."""
    numbers, start = list(numbers), time.monotonic()
    counts: Counter[str] = Counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting = [(number, pool.submit(outcome, kind, number)) for number in numbers]
        for done, (number, future) in enumerate(waiting, 1):
            try:
                passed, line = future.result()
            except BrokenProcessPool:
                print(f"a process died in case {number} or one beside it:")
                print(command(kind, number), flush=True)
                return counts["failed"] + 1
            counts[line.partition(":")[0].partition(" (")[0] if passed else "failed"] += 1
            if not passed or len(numbers) == 1:
                print(line, flush=True)
            if done % PROGRESS == 0 or done == len(numbers):
                told = ", ".join(f"{count} {name}" for name, count in counts.most_common())
                print(f"{kind}: {done} cases, {told}, {time.monotonic() - start:.0f} s", flush=True)
    return counts["failed"]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=[*kinds(), "all"], help="what to draw")
    parser.add_argument("--count", type=int, help="number of cases (default: all of the kind)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args()
    failures = 0
    for kind in kinds() if args.kind == "all" else [args.kind]:
        count = load(kind).COUNT if args.count is None else args.count
        failures += run(kind, range(args.first, args.first + count), max(1, args.jobs))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
