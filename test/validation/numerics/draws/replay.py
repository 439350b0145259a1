"""Runs drawn attention problems on the emulator and judges every element.

    python test/validation/numerics/draws/replay.py 17                       one draw, by its number
    python test/validation/numerics/draws/replay.py 17 --shrink              and the plainest one that fails alike
    python test/validation/numerics/draws/replay.py 17 --set 'mask=full'     with a choice of yours
    python test/validation/numerics/draws/replay.py --count 300 --jobs 2     draws 0 to 299; `make numerics`
    python test/validation/numerics/draws/replay.py --list                   axes and choices

A failure prints the command that repeats it. Exit code: 0 when all passed, 1 when one failed, 2 for
a wrong option.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

os.environ.setdefault("ATTN_MLIR_CHECK", "all")

from attn_mlir.validation.numerics.draws.axes import AXES
from attn_mlir.validation.numerics.draws.calls import HAS_TORCH
from attn_mlir.validation.numerics.draws.draw import draw, failure, interesting, shrunk


def one(seed: int, settings: dict[str, str], shrink: bool) -> int:
    """A draw with all that can be said about it."""
    names, _ = draw(seed, settings)
    print("\n".join(f"{name:>14}: {value}" for name, value in names.items()), flush=True)
    wrong = failure(seed, settings)
    if wrong and shrink:
        plainer, wrong = shrunk(seed)
        print(f"fails with {interesting(plainer)}")
    print(wrong or "ok")
    return 1 if wrong else 0


def many(first: int, count: int, jobs: int) -> int:
    """Draws one after the other, in `jobs` processes."""
    start = time.monotonic()
    context = multiprocessing.get_context("spawn")
    failures = 0
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for number, wrong in enumerate(pool.map(failure, range(first, first + count)), 1):
            if wrong:
                failures += 1
                print(wrong, flush=True)
            if number % 50 == 0 or number == count:
                seconds = time.monotonic() - start
                print(f"{number} draws, {failures} failed, {seconds:.0f} s", flush=True)
    return 1 if failures else 0


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expects AXIS=CHOICE, got {text!r}")
    return name, value


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seed", type=int, nargs="?", help="number of a draw")
    parser.add_argument("--set", type=_setting, action="append", default=[], metavar="AXIS=CHOICE")
    parser.add_argument("--shrink", action="store_true", help="look for a plainer failure")
    parser.add_argument("--count", type=int, help="number of draws")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--list", action="store_true", help="axes and choices")
    args = parser.parse_args()
    if args.list:
        for axis in AXES:
            print(f"{axis.name:>14}: {', '.join(choice.name for choice in axis.choices)}")
        return 0
    if not HAS_TORCH:
        print("without torch every call is made with arrays of numpy, whatever the draw says")
    if (args.seed is None) == (args.count is None):
        parser.error("expects a number of a draw, or --count")
    try:
        if args.count is not None:
            return many(args.first, args.count, max(1, args.jobs))
        return one(args.seed, dict(args.set), args.shrink)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
