"""Time from process start to a bundle: cold, with a warm cache, and warm inside a process; FlashAttention-4 beside it.

    python bench/compile.py                       our D=128 causal kernel
    python bench/compile.py --peer fa4 -n 10      and FlashAttention-4's forward kernel, interleaved with ours
    python bench/compile.py --against bb054fb     only cold, and as a ratio to a commit's, interleaved
    python bench/compile.py --latent -n 3         only cold, each kernel of latent attention; also with --against

Cold: `ATTN_MLIR_NO_CACHE`, a new Python process per repetition, wall clock from its start to its end with the bundle on
disk. Traced cold: the same kernel with a traced modifier and predicate, see bench/measuring/compile_child.py. Warm: cold with a
filled cache. User CPU is that of the process and of those that it started, less dependent on the machine's load; a
commit is compared by user and system CPU together. In process: the second and later `compile` calls of one process. The peer is
compiled by its own entry point on fake tensors with its cache off, in an environment of its own that the first call
makes (`.venv-peers`, some GB, minutes); its wall clock is taken the same way, its imports included. One run of each
that is not counted comes first, so that files are in the page cache and byte code is compiled for all. Reported are
medians and the 20 % and 80 % quantiles.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from attn_mlir.bench.measuring.checkout import checked_out, linked
from attn_mlir.bench.measuring.stats import ROOT, Spread, conditions
from attn_mlir.bench.peers import environment
from attn_mlir.bench.problems.latent_requests import LATENT
from attn_mlir.bench.problems.problem import Problem

CHILD = ROOT / "bench" / "measuring" / "compile_child.py"
# What the project promises, on two cores.
LIMITS_SECONDS = {"cold": 1.5, "traced cold": 2.0, "warm process": 0.15, "warm call": 0.005}
LATENT_SECONDS = 2.0  # promised of a cold compile of latent attention
WARM_CALLS = 20  # compile calls of one process, after its first


@dataclass
class Samples:
    """Seconds, one value per repetition; stages, of the plain cold compile, in their order."""

    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    user_seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    stages: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    stage_bytes: dict[str, int] = field(default_factory=dict[str, int])
    peer_stages: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class Process:
    """One compile process: wall, user and system CPU as its parent saw them, its own account; seconds."""

    wall: float
    user: float
    system: float
    ready: float
    imported: float
    again: list[float]
    stages: list[tuple[str, float, int | None]]  # name, seconds, bytes out


def run_child(
    problem: Problem,
    out: Path,
    cache: Path | None,
    again: int,
    *,
    traced: bool = False,
    latent: str | None = None,
    child: Path = CHILD,
    package: Path | None = None,
) -> Process:
    """One compile in a new process, then `again` more in it. `cache` None switches the cache off.

    Args:
      latent: name of a kernel of latent attention, in the problem's place.
      child: the program of a checkout that compiles.
      package: the folder that holds its package, where it is not what is installed.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ATTN_MLIR_")}
    setting = {"ATTN_MLIR_CACHE_DIR": str(cache)} if cache else {"ATTN_MLIR_NO_CACHE": "1"}
    if package is not None:
        setting["PYTHONPATH"] = str(package)
    command = [sys.executable, str(child), *problem.options(), f"--out={out}", f"--again={again}"]
    if traced:
        command.append("--traced")
    if latent is not None:
        command.append(f"--latent={latent}")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=inherited | setting)
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    if done.returncode != 0:
        sys.exit(f"the kernel did not compile:\n{done.stderr.strip()[-4000:]}")
    record: Any = json.loads(done.stdout.splitlines()[-1])
    stages = [(s["name"], float(s["seconds"]), s.get("bytes")) for s in record["stages"]]
    return Process(wall, user, system, record["ready"], record["import"], record["again"], stages)


def sample(problem: Problem, repetitions: int, with_fa4: bool, console: Console) -> Samples:
    """All measurements, the variants interleaved repetition by repetition."""
    result = Samples()
    result.seconds = {"cold": [], "traced cold": [], "warm process": [], "warm call": []}
    with tempfile.TemporaryDirectory() as folder, Progress(console=console, transient=True) as bar:
        out, cache = Path(folder) / "kernel.attn", Path(folder) / "cache"
        task = bar.add_task("warming up", total=repetitions + 1)
        for repetition in range(repetitions + 1):
            processes = {
                "cold": run_child(problem, out, None, 0),
                "traced cold": run_child(problem, out, None, 0, traced=True),
                "warm process": run_child(problem, out, cache, 0),
            }
            peer = environment.compile_fa4(problem) if with_fa4 else None
            if repetition > 0:
                for name, process in processes.items():
                    result.seconds[name].append(process.wall)
                    result.user_seconds[name].append(process.user)
                _add_stages(result, processes["cold"])
            if repetition > 0 and peer:
                result.seconds.setdefault("FA4 cold", []).append(peer.wall_seconds)
                for name, seconds in peer.stages.items():
                    result.peer_stages[name].append(seconds)
            bar.update(task, advance=1, description=f"repetition {repetition + 1} of {repetitions}")
        result.seconds["warm call"] = run_child(problem, out, cache, WARM_CALLS).again
    return result


def compare(problem: Problem, commit: str, repetitions: int, latent: str | None = None) -> Table:
    """Cold compiles of this checkout and of a commit, each imported from links to its folders.

    Args:
      latent: as of `run_child`.
    """
    found: dict[str, list[Process]] = {"here": [], commit: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with checked_out(commit, folder) as other:
            places = {"here": ROOT, commit: other}
            packages = {key: linked(place, folder / place.name) for key, place in places.items()}
            for repetition in range(repetitions + 1):
                for key in sorted(places, reverse=repetition % 2 == 1):
                    (child,) = (places[key] / "bench").rglob(f"*{CHILD.name}")  # wherever it lay
                    run = run_child(
                        problem,
                        folder / "out",
                        None,
                        0,
                        latent=latent,
                        child=child,
                        package=packages[key],
                    )
                    if repetition > 0:
                        found[key].append(run)
    title = f"cold, {latent or problem.title}, {repetitions} pairs"
    shown = Table(title=title, title_justify="left")
    shown.add_column("milliseconds", no_wrap=True)
    for heading in ("CPU (20 % .. 80 %)", "least CPU", "wall"):
        shown.add_column(heading, justify="right", no_wrap=True)
    cpu = {key: [run.user + run.system for run in runs] for key, runs in found.items()}
    wall = {key: Spread.of([run.wall for run in runs]).median for key, runs in found.items()}
    for key, values in cpu.items():
        times = (f"{min(values) * 1e3:.0f}", f"{wall[key] * 1e3:.0f}")
        shown.add_row(key, Spread.of(values).milliseconds(), *times)
    pairs = Spread.of([mine / its for mine, its in zip(cpu["here"], cpu[commit], strict=True)])
    least, ratio = min(cpu["here"]) / min(cpu[commit]), wall["here"] / wall[commit]
    shown.add_row("ratio", pairs.text(""), f"{least:.3f}", f"{ratio:.3f}")
    return shown


def sample_latent(problem: Problem, repetitions: int) -> dict[str, list[Process]]:
    """Cold compiles of each kernel of latent attention."""
    found: dict[str, list[Process]] = {name: [] for name in LATENT}
    with tempfile.TemporaryDirectory() as folder:
        for repetition in range(repetitions + 1):
            for name, runs in found.items():
                run = run_child(problem, Path(folder) / "kernel.attn", None, 0, latent=name)
                if repetition > 0:
                    runs.append(run)
    return found


def latent_table(samples: dict[str, list[Process]]) -> Table:
    """Wall clock and CPU of each kernel of latent attention."""
    shown = Table(title="cold compile of latent attention", title_justify="left")
    shown.add_column("milliseconds", no_wrap=True)
    for heading in ("median (20 % .. 80 %)", "CPU", "least CPU", "n", "promised"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, runs in samples.items():
        cpu = [run.user + run.system for run in runs]
        shown.add_row(
            name,
            Spread.of([run.wall for run in runs]).milliseconds(),
            f"{Spread.of(cpu).median * 1e3:.0f}",
            f"{min(cpu) * 1e3:.0f}",
            str(len(runs)),
            f"{LATENT_SECONDS * 1e3:g}",
        )
    return shown


def _add_stages(result: Samples, process: Process) -> None:
    """The bundle's stages, and before and after them what the wall clock has beyond them."""
    result.stages["Python starts and ends"].append(process.wall - process.ready)
    result.stages["import attn_mlir"].append(process.imported)
    for name, seconds, size in process.stages:
        result.stages[name].append(seconds)
        if size is not None:
            result.stage_bytes[name] = size
    inside = sum(seconds for _, seconds, _ in process.stages)
    result.stages["outside the stages"].append(process.ready - process.imported - inside)


def stage_table(samples: Samples) -> Table:
    """Median milliseconds and output size of every stage of a cold compile."""
    shown = Table(title="cold compile by stage", title_justify="left")
    shown.add_column("stage, milliseconds", no_wrap=True)
    for heading in ("median (20 % .. 80 %)", "share", "bytes out"):
        shown.add_column(heading, justify="right", no_wrap=True)
    total = Spread.of(samples.seconds["cold"]).median
    for name, values in samples.stages.items():
        spread = Spread.of(values)
        size = samples.stage_bytes.get(name)
        shown.add_row(
            name,
            spread.milliseconds(),
            f"{spread.median / total:.0%}",
            f"{size:,}" if size is not None else "",
        )
    return shown


def result_table(samples: Samples, title: str) -> Table:
    """Every variant with its limit, and the peer's times as multiples of our cold compile (`x cold`)."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("milliseconds", no_wrap=True)
    for heading in ("median (20 % .. 80 %)", "user CPU", "n", "promised", "x cold"):
        shown.add_column(heading, justify="right", no_wrap=True)
    cold = Spread.of(samples.seconds["cold"]).median
    rows = [*samples.seconds.items()]
    rows += [(f"FA4 {name} only", values) for name, values in samples.peer_stages.items()]
    for name, values in rows:
        spread = Spread.of(values)
        limit = LIMITS_SECONDS.get(name)
        shown.add_row(
            name,
            spread.milliseconds(),
            f"{Spread.of(user).median * 1e3:.0f}"
            if (user := samples.user_seconds.get(name))
            else "",
            str(spread.count),
            f"{limit * 1e3:g}" if limit else "",
            f"{spread.median / cold:.2f}" if name.startswith("FA4") else "",
        )
    return shown


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    Problem.add_options(parser)
    parser.add_argument("-n", "--repetitions", type=int, default=5, metavar="N")
    parser.add_argument("--peer", choices=("fa4",), help="also compile this project's kernel")
    parser.add_argument(
        "--against", metavar="COMMIT", help="only the ratio to a commit's cold compile"
    )
    parser.add_argument(
        "--latent", action="store_true", help="only cold, each kernel of latent attention"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument("--check", action="store_true", help="exit 1 when a promise is missed")
    args = parser.parse_args()
    if args.repetitions < 1:
        parser.error(f"--repetitions must be at least 1, got {args.repetitions}")
    return args


def latent(problem: Problem, args: argparse.Namespace, console: Console) -> None:
    """The run of `--latent`."""
    samples = sample_latent(problem, args.repetitions)
    console.print(latent_table(samples))
    walls = {name: Spread.of([run.wall for run in runs]) for name, runs in samples.items()}
    if args.json:
        record = {"conditions": conditions(), "seconds": {k: v.record() for k, v in walls.items()}}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    missed = [name for name, wall in walls.items() if wall.median > LATENT_SECONDS]
    if args.check and missed:
        sys.exit(f"slower than promised: {', '.join(missed)}")


def main() -> None:
    args = arguments()
    console = Console()
    problem = Problem.of(args)
    before = conditions()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the runs that are not counted leave byte code
    if args.against:
        for name in LATENT if args.latent else (None,):
            console.print(compare(problem, args.against, args.repetitions, name))
        console.print(", ".join(f"{key} {value}" for key, value in before.items()), style="dim")
        return
    if args.latent:
        latent(problem, args, console)
        console.print(", ".join(f"{key} {value}" for key, value in before.items()), style="dim")
        return
    if args.peer:
        environment.prepare(console.log)
    samples = sample(problem, args.repetitions, args.peer == "fa4", console)
    console.print(stage_table(samples))
    console.print(result_table(samples, problem.title))
    console.print(", ".join(f"{key} {value}" for key, value in before.items()), style="dim")
    spreads = {name: Spread.of(values) for name, values in samples.seconds.items()}
    if args.json:
        record = {
            "problem": problem.title,
            "conditions": before,
            "seconds": {name: spread.record() for name, spread in spreads.items()},
            "user_seconds": {
                name: Spread.of(v).record() for name, v in samples.user_seconds.items()
            },
            "stages": {name: Spread.of(v).record() for name, v in samples.stages.items()},
            "stage_bytes": samples.stage_bytes,
            "peer_stages": {name: Spread.of(v).record() for name, v in samples.peer_stages.items()},
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    missed = [name for name, limit in LIMITS_SECONDS.items() if spreads[name].median > limit]
    if args.check and missed:
        sys.exit(f"slower than promised: {', '.join(missed)}")


if __name__ == "__main__":
    main()
