"""FlashMLA's test matrix: what its groups share, the command line of a sweep and the comparison of results."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

CaseT = TypeVar("CaseT")


def swept(
    about: str, cases: Iterable[CaseT], run: Callable[[CaseT], str], subject: str = "cases"
) -> int:
    """The command line of a sweep.

    Args:
      about: the program's docstring.
      cases: in their order.
      run: what is wrong with a case; nothing where it is right.
      subject: what the cases are of.

    Returns:
      The exit code.
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="part of a case's text")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    options = parser.parse_args()
    chosen = [case for case in cases if options.only in str(case)]
    if options.list:
        print(*chosen, sep="\n")
        return 0
    begin, failed = time.perf_counter(), 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for case, reason in zip(chosen, pool.map(run, chosen), strict=True):
            failed += bool(reason)
            print(f"{'WRONG' if reason else 'ok'} {case} {reason}".strip(), flush=True)
    seconds = time.perf_counter() - begin
    print(f"{len(chosen)} {subject}, {failed} wrong, {seconds:.0f} s")
    return 1 if failed or not chosen else 0


def agrees(
    given: NDArray[Any],
    truth: NDArray[Any],
    absolute: float,
    relative: float,
    apart: float = 7e-6,
) -> bool:
    """FlashMLA's comparison of an output with its reference: for each element, and of all together."""
    given, truth = given.astype(np.float64), truth.astype(np.float64)
    is_finite = np.isfinite(truth)
    if not np.array_equal(given[~is_finite], truth[~is_finite], equal_nan=True):
        return False
    given, truth = given[is_finite], truth[is_finite]
    error = np.abs(given - truth)
    close = (error < absolute) | (error / (np.abs(truth) + 1e-6) < relative)
    squares = (given**2 + truth**2).sum()
    angle = 1 - 2 * (given * truth).sum() / squares if (truth**2).sum() >= 1e-12 else 0.0
    return bool(close.all()) and abs(angle) < apart
