"""What the checkers cost: processor time of checked runs over plain ones.

    python test/validation/conformance/cost.py                       every conformance case and four kernels made for this
    python test/validation/conformance/cost.py --only fa4,acq_rel    those whose names contain one of the texts
    python test/validation/conformance/cost.py --check               exit code 1 when it is more than promised

Plain and checked runs of a kernel take turns under the fair schedule, after one that translates it, and the fastest of
each kind counts: other programs of the machine make runs slower, never faster. The four kernels do much of what is dear
to follow: they fill a workspace of 64 MiB, meet in atomics of every thread that acquire and release, and reduce what all
CTAs wrote in the last of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from attn_mlir.runtime.emulator import Emulator
from attn_mlir.validation.conformance.cases import CASES, Case
from attn_mlir.validation.conformance.judging import operands
from attn_mlir.validation.conformance.recorded import Schedule, execute, recorded

PROMISED_MEDIAN, PROMISED_WORST = 3.0, 8.0  # times the plain run
WORKSPACE_BYTES = 64 << 20
THREADS = 128  # per CTA of the kernels below

_KERNEL = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 space, .param .u64 counter)
{{
    .reg .pred p<8>; .reg .b32 r<32>; .reg .b64 rd<16>;
    ld.param.u64 rd1, [space]; ld.param.u64 rd5, [counter];
    mov.u32 r1, %tid.x; mov.u32 r2, %ctaid.x; mov.u32 r3, %ntid.x; mov.u32 r4, %nctaid.x;
    mad.lo.u32 r5, r2, r3, r1; mul.lo.u32 r6, r3, r4; mov.u32 r10, 0;
    mul.wide.u32 rd2, r5, 16; add.u64 rd2, rd1, rd2; mul.wide.u32 rd3, r6, 16;
    {body}
    ret;
}}
"""
_FILL = """
    FILL: st.global.v4.b32 [rd2], {{r5, r10, r5, r10}}; {then}
    add.u64 rd2, rd2, rd3; add.u32 r10, r10, 1; setp.lt.u32 p1, r10, {turns}; @p1 bra FILL;
"""
_LAST = """
    bar.sync 0; setp.eq.u32 p2, r1, 0; mov.u32 r20, 0;
    @!p2 bra COUNTED;
    fence.acq_rel.gpu; atom.relaxed.gpu.global.add.u32 r20, [rd5], 1; fence.acq_rel.gpu;
    COUNTED: sub.u32 r21, r4, 1; setp.eq.and.u32 p3, r20, r21, p2;
    bar.red.or.pred p4, 0, p3; @!p4 bra END;
    mul.wide.u32 rd2, r1, 16; add.u64 rd2, rd1, rd2; mul.wide.u32 rd3, r3, 16; mov.u32 r10, 0;
    READ: ld.global.v4.b32 {r11, r12, r13, r14}, [rd2];
    add.u64 rd2, rd2, rd3; add.u32 r10, r10, 1; setp.lt.u32 p1, r10, 256; @p1 bra READ;
    END:
"""
_BACK = "ld.global.v4.b32 {r11, r12, r13, r14}, [rd2];"
MADE: dict[str, tuple[str, int]] = {  # by name: body and CTAs
    "workspace of 64 MiB": (_FILL.format(then=_BACK, turns=64), 16),
    "acq_rel of every thread, one counter": (
        "atom.acq_rel.gpu.global.add.u32 r20, [rd5], r1;",
        100,
    ),
    "acq_rel of every thread, its own word": (
        "mul.wide.u32 rd4, r5, 4; add.u64 rd4, rd1, rd4;\n"
        + "atom.acq_rel.gpu.global.add.u32 r20, [rd4], r1;\n" * 4,
        100,
    ),
    "reduction by the last CTA": (_FILL.format(then="", turns=64) + _LAST, 100),
}


@dataclass(frozen=True)
class Cost:
    """Seconds of one core of the fastest run without and with checkers."""

    name: str
    plain: float
    checked: float

    @property
    def ratio(self) -> float:
        """How many plain runs a checked one costs."""
        return self.checked / self.plain


def run_made(name: str) -> Callable[[str], float]:
    """A runner of a kernel of `MADE` under the named checkers; it returns seconds of one core."""
    body, ctas = MADE[name]
    text = _KERNEL.format(body=body)
    space, counter = np.zeros(WORKSPACE_BYTES, np.uint8), np.zeros(32, np.uint32)

    def run(check: str) -> float:
        counter[:] = 0
        emulator = Emulator("sm_100a", check=check)
        params = [emulator.map(space), emulator.map(counter)]
        begin = time.process_time()
        emulator.launch(text, "k", grid=(ctas, 1, 1), block=(THREADS, 1, 1), params=params)
        return time.process_time() - begin

    return run


def run_case(case: Case) -> Callable[[str], float]:
    """A runner of a conformance case; it returns seconds of one core."""
    record, values = recorded(case, print), operands(case)

    def run(check: str) -> float:
        mine = {name: value.copy() for name, value in values.items()}
        return execute(record, mine, Schedule("fair"), check).seconds

    return run


def measured(name: str, run: Callable[[str], float], repetitions: int) -> Cost:
    """The fastest of some plain and some checked runs, which take turns."""
    run("all")
    times = [(run("none"), run("all")) for _ in range(repetitions)]
    return Cost(name, min(plain for plain, _ in times), min(checked for _, checked in times))


def runners(only: list[str]) -> Iterator[tuple[str, Callable[[str], float]]]:
    """What is measured: names that contain one of the texts."""
    for case in CASES:
        if any(text in case.name for text in only):
            yield case.name, run_case(case)
    for name in MADE:
        if any(text in name for text in only):
            yield name, run_made(name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXTS", help="parts of names, with commas")
    parser.add_argument("-n", "--repetitions", type=int, default=3, metavar="N")
    parser.add_argument("--check", action="store_true", help="exit 1 when a promise is missed")
    args = parser.parse_args()
    if args.repetitions < 1:
        parser.error(f"--repetitions must be at least 1, got {args.repetitions}")
    costs: list[Cost] = []
    for name, run in runners(args.only.split(",")):
        cost = measured(name, run, args.repetitions)
        costs.append(cost)
        print(f"{name:40} {cost.plain:6.2f} s {cost.checked:6.2f} s {cost.ratio:5.1f}", flush=True)
    if not costs:
        parser.error(f"nothing is named like {args.only!r}")
    median = statistics.median(cost.ratio for cost in costs)
    worst = max(costs, key=lambda cost: cost.ratio)
    print(f"median {median:.1f}, worst {worst.ratio:.1f} ({worst.name}), of {len(costs)} kernels")
    if args.check and (median > PROMISED_MEDIAN or worst.ratio > PROMISED_WORST):
        sys.exit(f"promised: {PROMISED_MEDIAN} in the median, {PROMISED_WORST} at worst")


if __name__ == "__main__":
    main()
