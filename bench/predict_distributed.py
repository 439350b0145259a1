"""Compares the planner and the simulation with measured and published times, and over ranks.

    python bench/predict_distributed.py --write docs/lab/distributed.md --picture docs/distributed.svg

replaces the tables between the markers of the page. The planner is `attn_mlir.parallel`, the
simulation is `bench/simulate_distributed.py`. Rates of cuDNN and of FlashAttention come from times
of one GPU; no number was fitted to a time of several GPUs.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attn_mlir.bench.ranks.measured import TABLES, Measured, measured_cells
from attn_mlir.bench.simulate_distributed import Setting, simulate
from attn_mlir.errors import SpecError
from attn_mlir.parallel import GPUS, SCHEMES, Gpu, Links, Problem, Rate, plan_parallel
from attn_mlir.parallel.calls import OURS, Software
from attn_mlir.parallel.picture import picture
from attn_mlir.parallel.plan import INTER, LEVEL
from attn_mlir.parallel.schemes import predict

H200 = GPUS["H200"]
RUNS = {"prototype": "prototypes", "virtual": "virtual ranks", "library": "the library"}
LEAST_SCHEMES = 3  # measured schemes of a size, for the planner's choice among them to count
BEGIN, END = "<!-- predictions: begin -->", "<!-- predictions: end -->"

# cuDNN 9.19 of torch 2.11 on one H200, 27 November 2026: 612 and 678 TFLOP/s at 8,192 positions
# (causal, full), 662 and 624 at 32,768, 561 and 587 at 131,072, 506 causal at 262,144. Both passes
# of 32,768 positions take 55.1 and 109 ms, of 131,072 0.92 and 1.78 s.
CUDNN = Software(
    "cuDNN",
    Rate(690e12, 605e12, overhead_keys=250, causal_decay_keys=1.35e6),
    Rate(560e12, 530e12, overhead_keys=280),
    merges_pairwise=True,
    packs=False,
    kernels=2,
    passes=(1, 1),
)
PROTOTYPE = replace(CUDNN, name="ours", forward=None, backward=None)
SOFTWARE = {"library": {"ours": OURS}}
OTHERS = {"ours": PROTOTYPE, "cuDNN": CUDNN}


@dataclass(frozen=True)
class Compared:
    """A measured cell with the times of the planner and of the simulation, in milliseconds."""

    cell: Measured
    planned: float
    simulated: float

    @property
    def errors(self) -> tuple[float, float]:
        """Relative errors of the planner and of the simulation."""
        measured = self.cell.milliseconds
        return self.planned / measured - 1, self.simulated / measured - 1


def compared(cell: Measured) -> Compared:
    """Predicts a measured cell, or the best scheme if the cell is the best of several."""
    software = SOFTWARE.get(cell.run, OTHERS)[cell.software]
    problem = Problem(
        cell.length, 32, cell.kv_heads, is_causal=cell.is_causal, is_training=cell.is_training,
        ranks=cell.ranks, is_isolated=True,
    )  # fmt: skip
    links = Links(H200.intra_bandwidth, INTER, curve=2 if cell.run == "virtual" else 0)
    schemes = {"one": ["ring-nccl"], "nccl": ["ring-nccl", "gather", "ulysses"]}
    names = schemes.get(cell.scheme, [cell.scheme])
    setting = Setting(problem, H200, links, software)
    planned = min(predict(x, problem, H200, links, software).seconds for x in names)
    simulated = min(simulate(x, setting).seconds for x in names)
    return Compared(cell, planned * 1e3, simulated * 1e3)


@functools.cache
def all_compared() -> tuple[Compared, ...]:
    return tuple(map(compared, measured_cells()))


def error_tables() -> Iterator[str]:
    """Lines of markdown: a summary, then every cell with both errors."""
    several = [x for x in all_compared() if x.cell.scheme != "one"]
    yield "| cells | number | planner: mean, worst | simulation: mean, worst |"
    yield "| --- | ---: | ---: | ---: |"
    groups = {
        f"{RUNS[run]}, {software}": [
            x for x in several if (x.cell.run, x.cell.software) == (run, software)
        ]
        for run, software in dict.fromkeys((x.cell.run, x.cell.software) for x in several)
    }
    for name, rows in {**groups, "**all of several ranks**": several}.items():
        sides = [[abs(x.errors[i]) for x in rows] for i in (0, 1)]
        texts = " | ".join(f"{statistics.mean(x):.1%}, {max(x):.0%}" for x in sides)
        yield f"| {name} | {len(rows)} | {texts} |"
    yield ""
    yield _picks_text(several)
    for run, _, columns, is_training in TABLES:
        rows = [x for x in all_compared() if (x.cell.run, x.cell.is_training) == (run, is_training)]
        yield ""
        passes = ", both passes" if is_training else ""
        yield f"| {run}{passes} | " + " | ".join(" ".join(x) for x in columns) + " |"
        yield "| --- |" + " ---: |" * len(columns)
        yield from _cells(rows, columns)


def _picks_text(several: Sequence[Compared]) -> str:
    """A sentence with the slowdown of the planner's first scheme against the fastest measured one."""
    sizes: dict[tuple[object, ...], list[Compared]] = {}
    for x in several:
        if x.cell.scheme != "nccl":
            key = x.cell.run, x.cell.software, x.cell.ranks, x.cell.title
            sizes.setdefault(key, []).append(x)
    slower: list[float] = []
    for rows in sizes.values():
        if len(rows) >= LEAST_SCHEMES:
            first = min(rows, key=lambda x: x.planned).cell.milliseconds
            slower.append(first / min(x.cell.milliseconds for x in rows) - 1)
    right = sum(x == 0 for x in slower)
    return (
        f"At least {LEAST_SCHEMES} schemes were measured for {len(slower)} sizes. For {right} of them the "
        f"planner ranks the fastest scheme first; its first scheme is {statistics.mean(slower):.1%} "
        f"slower than the fastest one on average, and {max(slower):.0%} at most."
    )


def _cells(rows: Sequence[Compared], columns: Sequence[tuple[str, str]]) -> Iterator[str]:
    """A line of markdown for each size: milliseconds, and both errors in percent."""
    lines: dict[str, dict[tuple[str, str], str]] = {}
    one_rank: list[Compared] = []  # cells of one GPU precede the other cells of their line
    for x in rows:
        if x.cell.scheme == "one":
            one_rank.append(x)
            continue
        title = f"{x.cell.ranks} ranks, {x.cell.title.removesuffix(', both passes')}"
        line = lines.setdefault(title, {})
        for y in (*one_rank, x):
            a, b = (f"{100 * e:+.0f}" for e in y.errors)
            line[y.cell.software, y.cell.scheme] = f"{y.cell.milliseconds:g} ({a}, {b})"
        one_rank.clear()
    for title, line in lines.items():
        yield f"| {title} | " + " | ".join(line.get(x, "") for x in columns) + " |"


# ring_flash_attn's README: 8,192 tokens for each of 8 GPUs, 32 heads on 8, zigzag; iterations/s of
# FlashAttention 2 on one GPU give the rates: 591.5 and 154.7 with the backward pass on an H800,
# 373.4 and 94.7 on an A100. NVLink of 200 and 300 GB/s in one direction, of which 85 % as on an H200.
H800 = replace(
    H200, name="H800", forward=Rate(348e12, 348e12), backward=Rate(308e12, 308e12),
    memory_bandwidth=2.9e12, intra_bandwidth=170e9,
)  # fmt: skip
A100 = replace(
    H200, name="A100", sms=108, forward=Rate(220e12, 220e12), backward=Rate(187e12, 187e12),
    memory_bandwidth=1.7e12, intra_bandwidth=255e9,
)  # fmt: skip
ZIGZAG = ((H800, False, 73.9, 63.0), (H800, True, 19.3, 17.4), (A100, False, 46.7, 38.2),
          (A100, True, 11.8, 10.6))  # fmt: skip

# Context parallelism of Llama 3 405B, arXiv 2411.01783: 126 layers, 128 heads on 8, tensor parallel
# within nodes of 8 H100, a ring between them. FlashAttention-3 at 600 TFLOP/s (arXiv 2407.08608:
# 550 to 650 at head size 128). The rate of the weights is fitted to the first row.
FA3 = replace(PROTOTYPE, name="FlashAttention-3", forward=Rate(620e12, 600e12))
PREFILL = ((1, 2**17, 60.0), (1, 2**20, 1200.0), (16, 2**17, 3.8), (16, 2**20, 77.0))
LAYERS, WEIGHTS, WIDTH, NODE = 126, 405e9, 16384, 8
WEIGHTS_RATE = 350e12


def published() -> Iterator[str]:
    """Lines of markdown."""
    yield "| configuration | published | planner | simulation |"
    yield "| --- | ---: | ---: | ---: |"
    for gpu, is_training, alone, measured in ZIGZAG:
        problem = Problem(8 * 8192, 32, 8, is_training=is_training, ranks=8)
        links = Links(gpu.intra_bandwidth, INTER)
        texts: list[str] = []
        for seconds in _both("ring-nccl", problem, gpu, links, PROTOTYPE):
            share, rate = 1 / seconds / alone, 1 / seconds
            texts.append(f"{share:.1%} ({rate / measured - 1:+.0%})")
        passes = "forward and backward" if is_training else "forward"
        name = (
            f"ring_flash_attn, zigzag, 8 x {gpu.name}, {passes}: share of FlashAttention 2's rate"
        )
        yield f"| {name} | {measured / alone:.1%} | {texts[0]} | {texts[1]} |"
    for nodes, length, measured in PREFILL:
        problem = Problem(length, 16, 1, ranks=nodes, sm_margin=0)
        links = Links(GPUS["H100"].intra_bandwidth, INTER, 1)
        rest = 2 * WEIGHTS * length / (nodes * NODE) / WEIGHTS_RATE
        message = length // nodes * WIDTH * 2
        sums = (
            2 * LAYERS * 2 * Links(GPUS["H100"].intra_bandwidth, INTER).gather(message / NODE, NODE)
        )
        texts = [
            f"{total:.3g} s ({total / measured - 1:+.0%})"
            for total in (
                LAYERS * x + rest + sums
                for x in _both("ring-nccl", problem, GPUS["H100"], links, FA3)
            )
        ]
        name = f"Llama 3 405B, prefill of {length // 1024} Ki, {nodes * NODE} H100"
        yield f"| {name} | {measured:g} s | {texts[0]} | {texts[1]} |"


def _both(
    scheme: str, problem: Problem, gpu: Gpu, links: Links, software: Software
) -> tuple[float, float]:
    planned = predict(scheme, problem, gpu, links, software).seconds
    return planned, simulate(scheme, Setting(problem, gpu, links, software)).seconds


RANKS = tuple(2**x for x in range(3, 11))
LENGTHS = {"128 Ki": 2**17, "1 Mi": 2**20, "10 Mi": 10 * 2**20}
SCALES = 1.5  # least speedup on twice the ranks for which a scheme scales
FLAT_RANKS = 512  # ranks of the largest simulated flat ring; its events grow as the square of ranks
MARGIN = 16  # multiprocessors that NCCL's kernels take


@functools.cache
def simulated_times(
    gpu: Gpu, length: int, schemes: tuple[str, ...] = tuple(SCHEMES), margin: int = 0
) -> dict[str, dict[int, float]]:
    """Seconds by scheme and ranks; a scheme is dropped once it becomes slower on more ranks."""
    times: dict[str, dict[int, float]] = {name: {} for name in schemes}
    for name, ranks in ((x, y) for x in schemes for y in RANKS):
        found = list(times[name].values())
        is_slower = len(found) > 1 and found[-1] > found[-2]
        if is_slower or (name == "ring-nccl" and ranks > FLAT_RANKS):
            continue
        plan = plan_parallel(length, ranks=ranks, heads=64, kv_heads=8, gpu=gpu, sm_margin=margin)
        if plan[name].is_possible:
            setting = Setting(plan.problem, plan.gpu, plan.links)
            times[name][ranks] = simulate(name, setting).seconds
    return times


def scaling() -> Iterator[str]:
    """Lines of markdown: the picked scheme by ranks, and the ranks up to which schemes scale."""
    for gpu in (H200, GPUS["B200"]):
        yield f"{gpu.name}, {gpu.intra_bandwidth / 1e9:g} GB/s within a node and {INTER / 1e9:g} between:"
        yield ""
        yield "| tokens | " + " | ".join(map(str, RANKS)) + " |"
        yield "| --- |" + " --- |" * len(RANKS)
        for name, length in LENGTHS.items():
            yield f"| {name} | " + " | ".join(_picks(gpu, length)) + " |"
        yield ""
        yield "| scheme | " + " | ".join(LENGTHS) + " |"
        yield "| --- |" + " --- |" * len(LENGTHS)
        for scheme in SCHEMES:
            is_flat = scheme == "ring-nccl"
            ends = [_end(simulated_times(gpu, x)[scheme], is_flat) for x in LENGTHS.values()]
            yield f"| {scheme} | " + " | ".join(ends) + " |"
        ends = [
            _end(simulated_times(gpu, x, ("2d",), MARGIN)["2d"], False) for x in LENGTHS.values()
        ]
        yield f"| 2d, {MARGIN} multiprocessors left to NCCL | " + " | ".join(ends) + " |"
        yield ""


def _picks(gpu: Gpu, length: int) -> Iterator[str]:
    """The planner's pick and its simulated time, then schemes that are faster by more than 2 %."""
    times = simulated_times(gpu, length)
    for ranks in RANKS:
        plan = plan_parallel(length, ranks=ranks, heads=64, kv_heads=8, gpu=gpu)
        if plan.picked is None:
            yield "does not fit"
            continue
        if ranks not in times[plan.picked]:
            setting = Setting(plan.problem, plan.gpu, plan.links)
            times[plan.picked][ranks] = simulate(plan.picked, setting).seconds
        seconds = times[plan.picked][ranks]
        best = min((y[ranks], x) for x, y in times.items() if ranks in y)
        text = f"{plan.picked}, {_shown(seconds)}, {plan.one_rank / ranks / seconds:.0%}"
        if seconds > (1 + LEVEL) * best[0]:
            text += f" ({best[1]}: {_shown(best[0])})"
        yield text


def _shown(seconds: float) -> str:
    return f"{seconds:.4g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _end(times: dict[int, float], is_flat: bool) -> str:
    """The ranks up to which each doubling makes a scheme at least `SCALES` times as fast."""
    if not times:
        return "impossible"
    reached = min(times)
    for ranks in sorted(times):
        if 2 * ranks not in times or times[ranks] < SCALES * times[2 * ranks]:
            break
        reached = 2 * ranks
    if reached < max(times) or reached == RANKS[-1]:
        return str(reached)
    return f"{reached}, {'the most simulated' if is_flat else 'the most that it takes'}"


def drawn() -> str:
    """The picture of simulated times of 1 Mi tokens on H200s, as SVG."""
    length = LENGTHS["1 Mi"]
    lines: dict[str, dict[int, float]] = {"limit": {}}
    for ranks in RANKS:
        plan = plan_parallel(length, ranks=ranks, heads=64, kv_heads=8)
        lines["limit"][ranks] = plan.predictions[0].limit
    lines |= {x: y for x, y in simulated_times(H200, length).items() if y}
    caption = "simulated, one layer, forward; nodes of 8 GPUs, 385 GB/s within and 45 between"
    return picture(lines, "1,048,576 tokens, causal, 64 heads on 8, H200", caption)


PARTS = {"errors": error_tables, "published": published, "scaling": scaling}
HEADS = {
    "errors": "### Measured cells",
    "published": "### Published configurations",
    "scaling": "### 8 to 1,024 GPUs",
}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (all)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the tables of a page")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw times over ranks (.svg)")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"unknown part {min(unknown)}: {', '.join(PARTS)}")
    lines: list[str] = []
    for name in args.parts or PARTS:
        lines += [HEADS[name], "", *PARTS[name](), ""]
    if args.picture is not None:
        args.picture.write_text(drawn())
    if args.write is None:
        print("\n".join(lines))
        return 0
    page = args.write.read_text()
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise SpecError(f"{args.write} needs one {BEGIN} and one {END}")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    args.write.write_text("\n".join([f"{before}{BEGIN}", "", *lines, f"{END}{after}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
