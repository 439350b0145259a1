"""The time of a compile of each latent kernel that the frame can make, in seconds of CPU, and its parts.

    python bench/latent_compiles.py                       all of `problems/latent_frame.py`, the costliest first
    python bench/latent_compiles.py --only model1         those whose name has the text
    python bench/latent_compiles.py --cold 8              and the costliest eight cold, three times each
    python bench/latent_compiles.py --cold 8 --check      exit 1 where one of these takes more than is promised

Each kernel is compiled once by a child of a process that has compiled one before, so that no imports count: by how
much a cold compile takes more, the second table says, of processes as in `compile.py` of which the least counts. CPU is
that of the process and of ptxas; it hardly depends on what else a machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from attn_mlir.bench.compile import LATENT_SECONDS, run_child
from attn_mlir.bench.machine_code.sass import instruction_count
from attn_mlir.bench.measuring.stats import conditions
from attn_mlir.bench.problems import latent_frame
from attn_mlir.bench.problems.problem import Problem

PARTS = {
    "passes, proof": ("mlir", "attn", "ws", "nvvm"),
    "MLIR, LLVM": ("llvm", "ptx"),
    "ptxas": ("cubin",),
}  # of a compile, by its stages
COLD_RUNS = 3  # of which the least counts


def account(stages: Any) -> dict[str, float]:
    """The CPU of each of `PARTS`."""
    seconds = {stage["name"]: float(stage["cpu_seconds"]) for stage in stages}
    return {part: sum(seconds[name] for name in names) for part, names in PARTS.items()}


def compiled(name: str) -> dict[str, Any]:
    """Compiles a kernel, and says what that took."""
    import attn_mlir as am

    kernel = latent_frame.kernels()[name]
    bundle = am.compile(kernel.make(), target=kernel.target)
    parts = account(bundle.report["stages"])
    return {
        "name": name,
        **parts,
        "total": sum(parts.values()),
        "lines": bundle.ptx.count("\n"),
        "instructions": instruction_count(bundle.cubin),
        "spilled": bundle.report["spill_bytes"],
    }


def in_a_child(name: str) -> dict[str, Any]:
    """As `compiled`, in a fork of this process; nothing where it did not compile."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writer, json.dumps(compiled(name)).encode())
            os._exit(0)
        except BaseException as error:  # nothing of the child may go on as the parent
            print(f"{name}: {error}", file=sys.stderr)
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {}


def cold(name: str) -> float:
    """The least CPU of a process that compiles a kernel."""
    problem = Problem(target=latent_frame.kernels()[name].target)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernel.attn"
        runs = [run_child(problem, out, None, 0, latent=name) for _ in range(COLD_RUNS)]
    return min(run.user + run.system for run in runs)


def table(records: list[dict[str, Any]], title: str) -> Table:
    """The rows of some kernels; `cold` where it is known."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("kernel", no_wrap=True)
    for heading in ("cold", "warm", *PARTS, "PTX lines", "SASS", "spilled"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for record in records:
        seconds = [f"{record[x] * 1e3:.0f}" for x in ("total", *PARTS)]
        first = f"{record['cold'] * 1e3:.0f}" if "cold" in record else ""
        sizes = (f"{record['lines']}", f"{record['instructions']}", f"{record['spilled']}")
        shown.add_row(record["name"], first, *seconds, *sizes)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="part of the kernels' names")
    parser.add_argument("--cold", type=int, default=0, metavar="N", help="so many cold as well")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="only so many rows")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument("--check", action="store_true", help="exit 1 when a promise is missed")
    args = parser.parse_args()
    os.environ["ATTN_MLIR_NO_CACHE"] = "1"
    names = [name for name in latent_frame.kernels() if args.only in name]
    if not names:
        parser.error(f"no kernel has {args.only!r} in its name")
    compiled(names[0])
    found = [record for record in map(in_a_child, names) if record]
    records = sorted(found, key=lambda record: -record["total"])
    for record in records[: args.cold]:
        record["cold"] = cold(record["name"])
    title = f"{len(records)} kernels of latent attention, milliseconds of CPU"
    Console(width=None if sys.stdout.isatty() else 160).print(
        table(records[: args.show or None], title)
    )
    print(", ".join(f"{key} {value}" for key, value in conditions().items()))
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n")
    if len(records) < len(names):
        sys.exit(f"{len(names) - len(records)} did not compile")
    missed = [r["name"] for r in records if r.get("cold", 0) > LATENT_SECONDS]
    if args.check and missed:
        sys.exit(f"slower than promised: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
