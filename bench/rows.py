"""The cost of a tile of 128 keys in the kernels for sm_100a with few query rows: executed instructions and busy units.

    python bench/rows.py                       8, 16 and 32 rows of one group, head size 128, bf16
    python bench/rows.py --head-dim 64 --json  another size, as a record

Each kernel runs twice on the emulator, for one sequence with few and with more key tiles; the difference is what a tile
takes without masks, of all warps of a CTA. Counted are instructions of the PTX as they are executed, each once per warp.
A part of a multiprocessor issues one of them per clock, and its units take the clocks below (`UNITS`); the tensor core, the
port of shared memory and global memory are the multiprocessor's. Nothing of this is measured: the rates are published ones,
without latencies, and what the assembler drops or joins is counted as the PTX has it. The greatest number of a row is the
least that a tile can take; where that is memory's, a kernel with fewer instructions is no faster.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass, field
from unittest import mock

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

import attn_mlir as am
from attn_mlir.runtime.emulator import Emulator
from attn_mlir.runtime.emulator.core.state import WarpContext
from attn_mlir.runtime.emulator.machine.tensorcore import Mma
from attn_mlir.runtime.emulator.ptx.ast import Instruction
from attn_mlir.runtime.emulator.ptx.emit import BLOCKED
from attn_mlir.runtime.emulator.trace import Trace
from attn_mlir.runtime.emulator.trace.costs import mma_steps

SCHEDULES = ("mha", "mha-streaming", "mha-swapped")
TILE_KEYS = 128
FEW, MORE = 3, 7  # key tiles of the two runs
PARTS = 4  # of a multiprocessor; warp w is in part w mod 4
TENSOR_FLOOR = (
    44  # clocks of a tcgen05.mma, M=128, both operands in shared memory; B300, measured by others
)
SHARED_BYTES = 128  # per clock and multiprocessor
# Bytes per clock and multiprocessor of a B200, 148 of them at 1.85 GHz: 7.1 TB/s of memory, 20.4 TB/s of the L2 cache.
MEMORY_BYTES, CACHE_BYTES = 26, 74

UNITS: dict[str, tuple[int, tuple[str, ...]]] = {  # clocks of a part for one instruction of a warp
    "special": (8, ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "tanh")),
    "compare": (2, ("max", "min", "setp", "selp", "and", "or", "xor", "not", "shl", "shr", "prmt")),
    "exchange": (4, ("shfl", "ldmatrix")),
    "mma.sync": (8, ("mma",)),  # m16n8k16 at a quarter of the tensor core's rate
}


@dataclass
class Cost:
    """Executed instructions, by warp and by engine.

    Attributes:
      instructions: of each warp, by the first part of their opcode.
      tensor: clocks of the tensor core.
      shared: bytes through the port of shared memory by warps.
    """

    instructions: dict[int, Counter[str]] = field(default_factory=dict[int, "Counter[str]"])
    tensor: int = 0
    shared: int = 0

    def per_tile(self, fewer: Cost, tiles: int) -> dict[str, float]:
        """Clocks per key tile by which this run is longer than another; `instructions` are a count."""
        parts: list[Counter[str]] = [Counter() for _ in range(PARTS)]
        for warp, counts in self.instructions.items():
            parts[warp % PARTS].update(counts)
            parts[warp % PARTS].subtract(fewer.instructions.get(warp, Counter()))
        found = {"instructions": sum(part.total() for part in parts) / tiles}
        found["issue"] = max(part.total() for part in parts) / tiles
        for unit, (clocks, opcodes) in UNITS.items():
            found[unit] = max(sum(part[o] for o in opcodes) for part in parts) * clocks / tiles
        found["tensor core"] = (self.tensor - fewer.tensor) / tiles
        found["shared"] = (self.shared - fewer.shared) / SHARED_BYTES / tiles
        return found


class _Counting(Trace):
    """Counts what warps and the tensor core do, in the place of a trace."""

    def __init__(self, cost: Cost):
        super().__init__()
        self._cost = cost

    def ran(self, s: WarpContext, segment: int, next_segment: int, steps: int) -> None:
        """A warp ran a segment of its program, or was blocked at its start."""
        super().ran(s, segment, next_segment, steps)
        if next_segment == BLOCKED:
            return
        place = self.program.segments[segment]
        counts = self._cost.instructions.setdefault(s.warp.index, Counter())
        for instruction in self.program.kernel.instructions[place.first : place.last]:
            counts[instruction.parts[0]] += 1
            self._cost.shared += _shared_bytes(instruction)

    def multiplied(self, mma: Mma) -> None:
        """The tensor core forms a product."""
        super().multiplied(mma)
        self._cost.tensor += max(mma_steps(mma), TENSOR_FLOOR)


def _shared_bytes(instruction: Instruction) -> int:
    """Bytes that a warp moves through the port of shared memory."""
    parts = instruction.parts
    if parts[0] == "ldmatrix":
        return 128 * int(next(p for p in parts if p.startswith("x") and p[1:].isdecimal())[1:])
    if parts[0] in ("ld", "st") and len(parts) > 1 and parts[1].startswith("shared"):
        words = {"v2": 2, "v4": 4}
        count = next((words[p] for p in parts if p in words), 1)
        return 32 * count * int("".join(filter(str.isdecimal, instruction.type)) or 32) // 8
    return 0


def run(schedule: str, rows: int, head_dim: int, tiles: int) -> Cost:
    """One launch of one CTA for `rows` heads of a group."""
    random = np.random.default_rng(0)
    shapes = ((1, 1, rows, head_dim), *[(1, tiles * TILE_KEYS, 1, head_dim)] * 2)
    q, k, v = (random.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes)
    cost = Cost()

    class Counting(Emulator):
        def _new_trace(self) -> Trace:
            return _Counting(cost)

    device = am.EmulatorDevice(target="sm_100a", multiprocessors=1, check="none")
    with mock.patch("attn_mlir.runtime.emulator.Emulator", Counting):
        am.attention(q, k, v, schedule=schedule, device=device)
    return cost


def measure(rows: int, head_dim: int) -> dict[str, dict[str, float]]:
    """The time of a key tile in each kernel, in clocks of a multiprocessor or of its busiest part."""
    found: dict[str, dict[str, float]] = {}
    for schedule in SCHEDULES:
        few, more = (run(schedule, rows, head_dim, tiles) for tiles in (FEW, MORE))
        found[schedule] = more.per_tile(few, MORE - FEW)
    return found


def table(found: dict[int, dict[str, dict[str, float]]], head_dim: int) -> Table:
    """A row per kernel and number of rows; the last columns are what memory takes for the tile."""
    shown = Table(title=f"clocks per tile of {TILE_KEYS} keys, D={head_dim}, bf16, sm_100a")
    bytes_of_tile = 2 * TILE_KEYS * head_dim * 2
    units = list(next(iter(next(iter(found.values())).values())))
    for heading in ("rows", "kernel", *units, "L2", "memory"):
        shown.add_column(heading, justify="left" if heading == "kernel" else "right")
    for rows, kernels in found.items():
        for schedule, cost in kernels.items():
            memory = (bytes_of_tile / rate for rate in (CACHE_BYTES, MEMORY_BYTES))
            numbers = [f"{number:.0f}" for number in (*cost.values(), *memory)]
            shown.add_row(str(rows), schedule, *numbers)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 16, 32], help="heads of a group")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--json", action="store_true", help="a record in place of the table")
    args = parser.parse_args()
    found = {rows: measure(rows, args.head_dim) for rows in args.rows}
    if args.json:
        print(json.dumps({"head_dim": args.head_dim, "clocks": found}))
    else:
        Console(width=160).print(table(found, args.head_dim))


if __name__ == "__main__":
    main()
