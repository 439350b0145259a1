"""Generated PTX on a Hopper GPU and on the emulator.

`all` does everything on a machine with such a GPU (compute capability 9.0, the project installed
with its dependencies). Elsewhere, take the steps apart: `generate` and `compare` need no GPU, and
`gpu.py` on the other machine needs only numpy and cuda-python.

  python test/validation/differential/run.py all [--write]
  python test/validation/differential/run.py generate CASES [--seeds N]   (the first of them)
  python test/validation/differential/gpu.py CASES RESULTS
  python test/validation/differential/run.py compare CASES RESULTS [CASES RESULTS ..] [--write]

The exit status is 1 if anything differs. `--write` records the vectors of `make test` from the
first pair and writes the table of docs/lab/emulator.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from attn_mlir.validation.differential import gpu, report, suite, vectors
from attn_mlir.validation.differential.case import save
from attn_mlir.validation.differential.outcome import judge_all, together

SEEDS = (suite.SEED, 4711)
PROGRESS_S = 10.0


def generate(path: Path, seed: int, families: list[str] | None) -> None:
    """Write the programs of a seed."""
    programs = list(suite.generate(seed, families))
    save(path, programs, preset=1)
    print(f"{path}: {len(programs)} programs of seed {seed}", flush=True)


def compare(
    pairs: list[tuple[Path, Path]], seeds: list[int], adversaries: int, jobs: int, write: bool
) -> int:
    """Print every difference; how many programs differ."""
    tally, machines = report.Tally(), list[dict[str, str]]()
    for cases, results in pairs:
        programs, about = together(cases, results)
        machines.append(about)
        told = time.monotonic()
        outcomes = judge_all(programs, adversaries, jobs)
        for done, (program, outcome) in enumerate(zip(programs, outcomes, strict=True)):
            tally.add(program, outcome)
            for problem in outcome.problems:
                print(problem, flush=True)
            if time.monotonic() - told > PROGRESS_S:
                told = time.monotonic()
                print(f"  emulator: {done + 1} of {len(programs)}", flush=True)
    print(
        f"{tally.programs.total()} programs on {machines[0].get('gpu')}, driver {machines[0].get('driver')}: "
        f"{tally.differ.total()} differ, {tally.refused.total()} stop both"
    )
    if write:
        vectors.record(*together(*pairs[0]))
        report.write(report.section(tally, machines[0], seeds, adversaries))
    return tally.differ.total()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("all", "generate", "compare"))
    parser.add_argument("files", type=Path, nargs="*", help="CASES, or pairs of CASES RESULTS")
    parser.add_argument("--out", type=Path, default=Path("out/differential"), help="of `all`")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--families", nargs="+", choices=tuple(suite.FAMILIES), metavar="FAMILY")
    parser.add_argument(
        "--adversaries",
        type=int,
        default=2,
        help="adversarial schedules of each program (%(default)s)",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--write", action="store_true", help="vectors and docs/lab/emulator.md")
    args = parser.parse_args()
    files: list[Path] = args.files
    seeds: list[int] = args.seeds
    if args.write and args.families:
        parser.error("--write describes all families, got --families")
    if args.command == "generate":
        if len(files) != 1:
            parser.error(f"generate takes one file, got {len(files)}")
        generate(files[0], seeds[0], args.families)
        return 0
    if args.command == "all":
        if files:
            parser.error(f"all takes no files, got {files[0]}; see --out")
        out: Path = args.out
        for seed in seeds:
            pair = out / f"cases-{seed}.xz", out / f"results-{seed}.xz"
            files += pair
            generate(pair[0], seed, args.families)
            gpu.run_all(*pair, workers=max(1, args.jobs - 2))
    if not files or len(files) % 2:
        parser.error(f"compare takes pairs of cases and results, got {len(files)} files")
    for path in files:
        if not path.is_file():
            parser.error(f"there is no file {path}")
    pairs = list(zip(files[::2], files[1::2], strict=True))
    return 1 if compare(pairs, seeds, args.adversaries, args.jobs, args.write) else 0


if __name__ == "__main__":
    sys.exit(main())
