"""Drawn runs, each by its number: what failed, and the command of a module of such."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Drawn(Protocol):
    """What was drawn; its text says what."""

    def run(self) -> object:
        """Raises any exception if something is wrong."""
        ...


@dataclass(frozen=True)
class DrawnRuns:
    """The draws of a module.

    Attributes:
      module: name by which Python runs it.
      drawn: what a number stands for.
    """

    module: str
    drawn: Callable[[int], Drawn]

    def failure(self, seed: int) -> str:
        """Runs a draw: what is wrong, with the command that repeats it; empty if nothing is."""
        one = self.drawn(seed)
        try:
            one.run()
        except Exception as error:
            return f"python -m {self.module} {seed}\n  {one}\n  {type(error).__name__}: {error}"
        return ""

    def command(self, described: str) -> int:
        """The command of the module, and its exit code.

        Args:
          described: how it is called.
        """
        parser = argparse.ArgumentParser(
            description=described, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("seed", type=int, nargs="?", help="number of a draw")
        parser.add_argument("--count", type=int, default=1, help="so many draws")
        parser.add_argument("--first", type=int, default=0, help="number of the first one")
        args = parser.parse_args()
        first = args.first if args.seed is None else args.seed
        start, failures = time.monotonic(), 0
        for number, seed in enumerate(range(first, first + args.count), 1):
            if wrong := self.failure(seed):
                failures += 1
                print(wrong, flush=True)
            if number % 50 == 0 or number == args.count:
                seconds = time.monotonic() - start
                print(f"{number} draws, {failures} failed, {seconds:.0f} s", flush=True)
        return 1 if failures else 0
