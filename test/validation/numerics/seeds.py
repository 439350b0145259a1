"""Runs every family of our kernels under adversarial schedules with all checkers.

    python test/validation/numerics/seeds.py                    fair and 20 adversarial seeds each
    python test/validation/numerics/seeds.py --only packed      families whose name contains the text
    python test/validation/numerics/seeds.py --seeds 3 --jobs 2
    python test/validation/numerics/seeds.py --write            also puts the table into docs/lab/emulator.md
    python test/validation/numerics/seeds.py --list             names only

Exit code: 0 when every run gave the right numbers and no finding, else 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from attn_mlir.validation.numerics.draws.problem import Outcome
from attn_mlir.validation.numerics.families import FAMILIES, name, run
from attn_mlir.validation.numerics.mha_cases import Schedule

PAGE = Path(__file__).resolve().parents[3] / "docs" / "lab" / "emulator.md"
BEGIN, END = "<!-- seeds: begin -->", "<!-- seeds: end -->"
SEEDS = 20


@dataclass(frozen=True)
class Row:
    """A family's runs; what was wrong in some of them."""

    number: int
    ptx_lines: int
    warp_instructions: int
    runs: int
    failures: tuple[str, ...]

    def cells(self) -> list[str]:
        """Kernel, PTX lines, warp-instructions of the fair run, runs."""
        return [
            name(FAMILIES[self.number]),
            f"{self.ptx_lines:,}",
            f"{self.warp_instructions:,}",
            f"{self.runs - len(self.failures)} of {self.runs}",
        ]


def run_family(number: int, seeds: int) -> Row:
    """Fair and under each seed; every exception becomes a failure."""
    schedules = [Schedule("fair"), *(Schedule("adversarial", seed) for seed in range(seeds))]
    failures: list[str] = []
    first: Outcome | None = None
    for schedule in schedules:
        try:
            outcome = run(number, schedule)
        except Exception as error:
            outcome = Outcome("".join(traceback.format_exception_only(error)).strip(), 0, 0)
        first = first or outcome
        if outcome.wrong:
            failures.append(f"{schedule.name}: {outcome.wrong}")
    assert first is not None
    return Row(number, first.ptx_lines, first.warp_instructions, len(schedules), tuple(failures))


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| problem | PTX lines | warp-instr. | runs right |",
        "| --- | ---: | ---: | --- |",
    ]
    return "\n".join([*lines, *("| " + " | ".join(row.cells()) + " |" for row in rows)])


def write_page(text: str, page: Path = PAGE) -> None:
    """Put the table between its markers.

    Raises:
      SystemExit: the page has no markers.
    """
    head, begin, rest = page.read_text().partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{page} has no place for the table: {BEGIN} and {END}")
    page.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="part of names")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"from 0 (default {SEEDS})")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/lab/emulator.md"
    )
    parser.add_argument("--list", action="store_true", help="names only")
    args = parser.parse_args()
    if args.jobs < 1 or args.seeds < 0:
        parser.error("--jobs must be positive and --seeds not negative")
    if args.write and args.only:
        parser.error("--write needs every family, so it does not go with --only")
    args.numbers = [n for n, family in enumerate(FAMILIES) if args.only in name(family)]
    if not args.numbers:
        parser.error(f"no family is named like {args.only!r}; --list shows all")
    return args


def main() -> None:
    args = arguments()
    console = Console()
    rows: list[Row] = []
    if args.list:
        print("\n".join(name(FAMILIES[number]) for number in args.numbers))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, mp_context=context) as pool:
        waiting = [pool.submit(run_family, number, args.seeds) for number in args.numbers]
        for done, future in enumerate(waiting, 1):
            rows.append(future.result())
            title, _, _, right = rows[-1].cells()
            text = f"{done} of {len(waiting)}: {title}: {right} runs right"
            console.print(text, highlight=False, markup=False, soft_wrap=True)
            for failure in rows[-1].failures:
                console.print(failure, highlight=False, markup=False, soft_wrap=True)
    failed = any(row.failures for row in rows)
    if args.write and not failed:
        write_page(table(rows))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
