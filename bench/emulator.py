"""Speed of the emulator on one core: seconds and warp-instructions per second of a causal attention.

    python bench/emulator.py                       our kernel, B=1, H=2, S=512, D=128, causal, bf16
    python bench/emulator.py --peer fa4            FlashAttention-4's kernel for the same, launched as its authors do
    python bench/emulator.py --recorded DIR/NAME   any kernel whose launch was recorded: NAME.ptx and NAME.launch.json
    python bench/emulator.py --case NAME           a kernel of `make conformance`, such as cuda-sm90-mla-decode
    python bench/emulator.py --case NAME --checkers all,-unpromised    the same, watched
    python bench/emulator.py --both                native arithmetic and Python in turns, in seconds of the process
    python bench/emulator.py --schedule NAME       our kernel by another schedule, such as mha-streaming

The process pins itself to one core. The first run parses and translates the PTX; it is shown on its own. `--check` exits
with 1 when the median is above 5 s, what the project promises. A recorded launch is JSON with `entry`, `grid`, `block`,
`cluster`, `shared_bytes`, `params` (hexadecimal bytes per parameter, tensor maps included), `shapes` and `addresses` of
the tensors q, k, v, o and lse that the parameters point at, `dtype`, `causal` and `scale`. What the first run computed is
judged as the tests judge it; wrong numbers end the benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

from attn_mlir.bench.measuring.stats import Spread, conditions
from attn_mlir.bench.peers.environment import record_fa4
from attn_mlir.bench.problems.problem import Problem

NAMES = ("q", "k", "v", "o", "lse")
PROMISED_SECONDS = 5.0  # B=1, H=2, S=512, D=128, causal, one core


@dataclass(frozen=True)
class Run:
    """One emulation: wall and processor seconds with everything, and what the emulator counted."""

    seconds: float
    cpu_seconds: float
    warp_instructions: int


@dataclass(frozen=True)
class Subject:
    """A kernel to run again and again, and what judges it.

    Attributes:
      run: runs it, with native arithmetic if the argument is true.
      judge: whether the last run's numbers are right, and what to print of them.
    """

    title: str
    run: Callable[[bool], Run]
    judge: Callable[[], tuple[bool, str]]


def judge_attention(
    arrays: dict[str, NDArray[Any]], is_causal: bool, scale: float
) -> tuple[bool, str]:
    """Judges o and lse of these q, k and v."""
    import attn_mlir as am
    from attn_mlir.reference import check_attention

    mask = am.causal() if is_causal else am.full()
    verdict = check_attention(*(arrays[name] for name in NAMES), mask=mask, scale=scale)
    return verdict.ok, str(verdict)


def inputs(shapes: dict[str, list[int]], dtype: str) -> dict[str, NDArray[Any]]:
    """Normal random q, k and v; outputs full of NaN."""
    import ml_dtypes
    import numpy as np

    random = np.random.default_rng(0)
    element = np.dtype(ml_dtypes.bfloat16) if dtype == "bf16" else np.dtype(np.float16)
    arrays: dict[str, NDArray[Any]] = {}
    for name, shape in shapes.items():
        if name in ("q", "k", "v"):
            arrays[name] = random.standard_normal(shape).astype(element)
        else:
            kind = np.dtype(np.float32) if name == "lse" else element
            arrays[name] = np.full(shape, np.nan).astype(kind)
    return arrays


def our_kernel(problem: Problem, batch: int, length: int, schedule: str | None) -> Subject:
    """Our kernel on the emulator device, called through the public interface."""
    import attn_mlir as am

    kernel = am.load(problem.compile(schedule=schedule) if schedule else problem.compile())
    wide, narrow = problem.heads, problem.kv_heads
    shapes = {
        "q": [batch, length, wide, problem.head_dim],
        "k": [batch, length, narrow, problem.head_dim],
        "v": [batch, length, narrow, problem.head_dim],
        "o": [batch, length, wide, problem.head_dim],
        "lse": [batch, wide, length],
    }
    arrays = inputs(shapes, problem.dtype)

    def run(native: bool) -> Run:
        device = am.EmulatorDevice(native=native)
        begin, cpu = time.perf_counter(), time.process_time()
        launch = kernel(*arrays.values(), device=device)
        spent = (time.perf_counter() - begin, time.process_time() - cpu)
        return Run(*spent, launch.warp_instructions or 0)

    title = f"B={batch} S={length} {problem.title}" + (f", {schedule}" if schedule else "")
    scale = problem.head_dim**-0.5
    return Subject(title, run, partial(judge_attention, arrays, problem.is_causal, scale))


def recorded_kernel(stem: Path) -> Subject:
    """A launch for sm_100a recorded elsewhere, on the emulator itself."""
    from attn_mlir.runtime.emulator import Emulator

    ptx = stem.with_name(stem.name + ".ptx")
    record = stem.with_name(stem.name + ".launch.json")
    for path in (ptx, record):
        if not path.is_file():
            sys.exit(f"--recorded wants {path}, which does not exist")
    text = ptx.read_text()
    launch: Any = json.loads(record.read_text())
    arrays = inputs(launch["shapes"], launch["dtype"])

    def run(native: bool) -> Run:
        emulator = Emulator(target="sm_100a", native=native)
        for name, array in arrays.items():
            emulator.map(array, address=int(launch["addresses"][name], 16))
        begin, cpu = time.perf_counter(), time.process_time()
        stats = emulator.launch(
            text,
            launch["entry"],
            grid=tuple(launch["grid"]),
            block=tuple(launch["block"]),
            cluster=tuple(launch["cluster"]),
            shared_bytes=launch["shared_bytes"],
            params=[bytes.fromhex(value) for value in launch["params"]],
        )
        spent = (time.perf_counter() - begin, time.process_time() - cpu)
        return Run(*spent, stats.warp_instructions)

    judge = partial(judge_attention, arrays, launch["causal"], launch["scale"])
    return Subject(stem.name, run, judge)


def case_kernel(name: str, check: str) -> Subject:
    """A kernel of `make conformance`, compiled and recorded where it is not there yet.

    Args:
      check: names of the checkers that watch the kernel.

    Raises:
      KeyError: no case has that name.
    """
    from attn_mlir.validation.conformance.cases import case_named
    from attn_mlir.validation.conformance.judging import judge, operands
    from attn_mlir.validation.conformance.recorded import Schedule, execute, recorded

    case = case_named(name)
    record = recorded(case, print)
    arrays: dict[str, NDArray[Any]] = {}

    def run(native: bool) -> Run:
        begin, cpu = time.perf_counter(), time.process_time()
        done = execute(record, operands(case), Schedule("fair"), check, native=native)
        spent = (time.perf_counter() - begin, time.process_time() - cpu)
        arrays.update(done.arrays)
        return Run(*spent, done.warp_instructions)

    def judged() -> tuple[bool, str]:
        verdicts = judge(case, arrays)
        return all(one.ok for one in verdicts), ", ".join(map(str, verdicts))

    return Subject(f"{case.package}, {case.title}", run, judged)


def one_core() -> str:
    """Pins the process where the system can; returns what to print."""
    if not hasattr(os, "sched_setaffinity"):
        return "not pinned"
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return f"core {core}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    Problem.add_options(parser)
    parser.set_defaults(heads=2, kv_heads=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=512, help="queries and keys")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--peer", choices=("fa4",), help="this project's kernel instead of ours")
    other.add_argument("--recorded", type=Path, metavar="DIR/NAME", help="instead of our kernel")
    other.add_argument("--case", metavar="NAME", help="of `make conformance`, instead of ours")
    parser.add_argument("--schedule", metavar="NAME", help="of our kernel")
    parser.add_argument("--checkers", default="none", metavar="NAMES", help="that watch a --case")
    parser.add_argument("--both", action="store_true", help="native arithmetic and Python in turns")
    parser.add_argument("-n", "--repetitions", type=int, default=3, metavar="N")
    parser.add_argument("--profile", action="store_true", help="profile one run by function")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument("--check", action="store_true", help="exit 1 when the promise is missed")
    args = parser.parse_args()
    if args.checkers != "none" and not args.case:
        parser.error("--checkers watch a --case; another kernel's are named by ATTN_MLIR_CHECK")
    if args.repetitions < 1:
        parser.error(f"--repetitions must be at least 1, got {args.repetitions}")
    return args


def in_turns(run: Callable[[bool], Run], repetitions: int) -> None:
    """Processor time of both ways, the fastest of each: other programs make runs slower, never faster."""
    run(False)
    runs = [(run(False), run(True)) for _ in range(repetitions)]
    for name, way in (("Python", 0), ("native", 1)):
        best = min((pair[way] for pair in runs), key=lambda item: item.cpu_seconds)
        rate = best.warp_instructions / best.cpu_seconds
        print(f"{name}: {best.cpu_seconds:.3f} s, {rate:,.0f} warp-instructions a second")


def profile(run: Callable[[bool], Run]) -> None:
    """The 25 functions that one run spends most time in."""
    import cProfile
    import pstats

    profiler = cProfile.Profile()
    profiler.runcall(run, True)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    args = arguments()
    before = conditions()
    problem = Problem.of(args)
    if args.recorded or args.peer:
        stem = args.recorded or record_fa4(problem, args.batch, args.length, print)
        subject = recorded_kernel(stem)
    elif args.case:
        subject = case_kernel(args.case, args.checkers)
    else:
        subject = our_kernel(problem, args.batch, args.length, args.schedule)
    title, run = f"FA4 {subject.title}" if args.peer else subject.title, subject.run
    place = one_core()
    first = run(True)
    print(f"{title}, {place}")
    print(f"first run, translation included: {first.seconds:.2f} s")
    is_right, text = subject.judge()
    print(text)
    if not is_right:
        sys.exit("the numbers are wrong, so their speed does not matter")
    if args.profile:
        profile(run)
        return
    if args.both:
        in_turns(run, args.repetitions)
        return
    runs: list[Run] = []
    for repetition in range(args.repetitions):
        runs.append(run(True))
        print(f"run {repetition + 1} of {args.repetitions}: {runs[-1].seconds:.2f} s", flush=True)
    seconds = Spread.of([item.seconds for item in runs])
    rate = Spread.of([item.warp_instructions / item.seconds for item in runs])
    processor = Spread.of([item.cpu_seconds for item in runs])
    print(f"time: {seconds.text('s', 2)}, of the processor {processor.text('s', 2)}")
    print(f"warp-instructions: {runs[-1].warp_instructions:,}, {rate.median:,.0f} per second")
    print(", ".join(f"{key} {value}" for key, value in before.items()))
    if args.json:
        record = {
            "title": title,
            "conditions": before,
            "first_seconds": first.seconds,
            "seconds": seconds.record(),
            "warp_instructions": runs[-1].warp_instructions,
            "per_second": rate.record(),
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    if args.check and seconds.median > PROMISED_SECONDS:
        sys.exit(f"slower than promised: {seconds.median:.2f} s, {PROMISED_SECONDS} s are allowed")


if __name__ == "__main__":
    main()
