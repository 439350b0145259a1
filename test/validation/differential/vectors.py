"""The vectors of `make test`: programs recorded on a GPU, chosen to cover much in few bytes."""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from attn_mlir.validation.differential.case import Bytes, Program, save
from attn_mlir.validation.differential.matrices import CASES
from attn_mlir.validation.differential.outcome import judged

VECTORS = Path(__file__).resolve().parent / "vectors" / "h200.xz"
MAX_BYTES = 1_200_000
LEAST = 3  # programs of each family
LANES = 8  # of a chain's 32 threads, which know nothing of each other
_CHAINS = ("integer", "float", "half", "convert", "approximate")
_PLACES = frozenset("global shared shared::cta shared::cluster local const".split())
_HINTS = frozenset(
    "weak volatile relaxed acquire release acq_rel cta cluster gpu sys nc ca cg cs lu cv wb wt".split()
)
_CHAIN_LOAD = re.compile(r"ld\.global\.b(\d+) \w+, \[d[234]\+(\d+)\]")
_PART_OF_SHAPE = re.compile(r"(depth|ctas|lag|ending)=\S+?[,)]")


def kind_of(opcode: str) -> str:
    """An opcode without what says only a size (the N of wgmma) or how an access is cached."""
    parts = opcode.split(".")
    if parts[0] in ("ld", "st", "atom", "red"):
        parts = [p for p in parts if p not in _HINTS and not p.startswith(("L1::", "L2::"))]
    return ".".join(p[:3] if p.startswith("m64n") else p for p in parts)


def aspects(program: Program) -> set[str]:
    """What a recorded program stands for: its opcodes, those of large families taken apart.

    For memory, copies and products every state space or rank and every operation and type is covered,
    but not every pair of them; for tensor maps every rank with every swizzle. A program that stopped
    the GPU stands for just that.
    """
    family = program.family
    if program.error:
        return {f"{family} stops"}
    result: set[str] = set()
    for opcode in map(kind_of, program.covers):
        parts = opcode.split(".")
        if parts[:2] == ["wgmma", "mma_async"]:
            d, a, b = parts[5:8]
            result |= {f"wgmma d {d}", f"wgmma a {a}", f"wgmma b {b}"}
        elif parts[0] in ("ld", "st", "atom", "red", "cp", "mma"):
            words = [p for p in parts[1:] if p in _PLACES or p.endswith("d")]
            rest = [p for p in parts if p not in words and p not in ("tile", "satfinite")]
            result |= {".".join([parts[0], *words]), ".".join(rest)}
        else:
            result.add(opcode)
    for spec in program.maps if family != "tma-before" else []:
        result.add(f"{family} rank {len(spec.dims)} swizzle {spec.swizzle}")
        result |= {f"{family} element {spec.element}", f"{family} fill {spec.fill}"}
    if family == "pipeline":
        result |= {m.group() for m in _PART_OF_SHAPE.finditer(program.columns[0].label)}
    return result


def _first_lanes(program: Program) -> Program:
    """A chain of the first threads only: what the others read and wrote becomes 0."""
    block = program.block
    inputs = np.zeros_like(program.buffers[0])
    for bits, start in _CHAIN_LOAD.findall(program.ptx):
        at = slice(int(start), int(start) + int(bits) // 8 * LANES)
        inputs[at] = program.buffers[0][at]
    columns = [replace(c, count=c.count * LANES // block) for c in program.columns]
    result = np.zeros_like(program.results[1])
    for column in columns:
        item = 2 if column.dtype == "bf16" else int(column.dtype[1:])
        at = slice(column.start, column.start + column.count * item)
        result[at] = program.results[1][at]
    return replace(
        program, buffers=[inputs, program.buffers[1]], columns=columns, block=LANES,
        results={1: result},
    )  # fmt: skip


def _first_cta(program: Program) -> Program:
    """Of CTAs that compute the same from operands of their own, the first."""

    def part(buffer: Bytes) -> Bytes:
        return buffer[: buffer.size // CASES]

    return replace(
        program, buffers=[part(b) for b in program.buffers], columns=program.columns[:1], grid=1,
        results={i: part(r) for i, r in program.results.items()},
    )  # fmt: skip


def shortened(program: Program) -> Program:
    """The part of a program that is recorded, where threads or CTAs do not depend on each other."""
    if program.family in _CHAINS:
        return _first_lanes(program)
    return _first_cta(program) if program.family == "mma" else program


def _cost(program: Program) -> int:
    """About as many bytes as a program takes in the file; texts repeat and are small there."""
    arrays = [*program.buffers, *program.results.values()]
    return 250 + sum(len(zlib.compress(a.tobytes(), 1)) for a in arrays)


def choose(programs: Sequence[Program]) -> list[Program]:
    """Programs that cover every aspect cheaply, and a few more of every family."""
    costs = {p.name: _cost(p) for p in programs}
    covered = {p.name: aspects(p) for p in programs}
    wanted = set[str]().union(*covered.values())
    left = sorted(programs, key=lambda p: (costs[p.name], p.name))
    chosen: list[Program] = []
    while wanted:
        best = max(left, key=lambda p: len(wanted & covered[p.name]) / costs[p.name])
        left.remove(best)
        chosen.append(best)
        wanted -= covered[best.name]
    have = Counter(p.family for p in chosen)
    times = Counter(aspect for p in chosen for aspect in covered[p.name])
    for program in sorted(chosen, key=lambda p: -costs[p.name]):  # needed no longer
        mine = covered[program.name]
        if have[program.family] > LEAST and all(times[aspect] > 1 for aspect in mine):
            chosen.remove(program)
            have[program.family] -= 1
            times.subtract(mine)
    spare: dict[str, list[Program]] = defaultdict(list)
    for program in left:
        spare[program.family].append(program)
    for family, rest in spare.items():  # of the cheaper half, evenly
        count = max(0, LEAST - have[family])
        half = rest[: len(rest) // 2 + 1]
        chosen += half[:: max(1, len(half) // max(count, 1))][:count]
    return sorted(chosen, key=lambda p: p.name)


def record(programs: Sequence[Program], about: dict[str, str]) -> None:
    """Write the file.

    Raises:
      SystemExit: a chosen program differs on the emulator, or the file is too large.
    """
    chosen = choose([p if p.error else shortened(p) for p in programs])
    problems = [problem for p in chosen for problem in judged(p).problems]
    if problems:
        raise SystemExit("\n".join(["vectors that the emulator gets wrong:", *problems]))
    save(VECTORS, chosen, about, preset=9)
    size_bytes = VECTORS.stat().st_size
    print(f"{VECTORS.name}: {len(chosen)} programs, {size_bytes} bytes")
    if size_bytes > MAX_BYTES:
        raise SystemExit(f"the vectors take {size_bytes} bytes, {MAX_BYTES} are allowed")
