"""Clocks of a turn of the loop over key tiles, without a GPU: machine code replayed on one part of a multiprocessor.

    python bench/replay.py                       operands of 8 bits, head size 128, full mask
    python bench/replay.py --dtype bf16 --head-dim 64

One of the four parts of a multiprocessor is simulated, with a warp of each group that attends and, with 8 bits, one that
transposes values. The order of instructions, their stalls and what they wait for are those that ptxas wrote into the
machine code. A unit takes an instruction of a warp every so many clocks (`UNITS`), a result of unknown delay comes after
`LATENCIES`, products are served in the order in which they are issued, at the rate of the tensor core. Keys and values
are always there; of a branch the side is taken on which no maximum moves. So it tells which unit and which wait bounds a
loop, and compares two orders of the same work. It says too little, by up to a third of what was counted on an H200 in loops
of 16 bits (schedules/attention/warpgroups/README.md#what-bounds-8-bits): bandwidth of shared memory, bank conflicts and the L2 cache are not in it, nor how
warps of one part take turns on a real one (here goes on the one that can and has not issued for longest).

Printed are the mean and the range over some numbers of clocks by which groups begin one after the other.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import attn_mlir as am
from attn_mlir.bench.machine_code import sass

TARGET, GROUP_WARPS = "sm_90a", 4
UNITS = {  # clocks for which an instruction of a warp keeps a unit of its part
    "MUFU": ("special", 8),
    **dict.fromkeys(("FFMA", "FADD", "FMUL"), ("multiply", 1)),
    "IMAD": ("multiply", 2),
    **dict.fromkeys(("SHFL", "LDSM", "STS", "LDS", "SYNCS"), ("memory", 4)),
    **dict.fromkeys(
        "F2FP FMNMX FSEL FSETP I2FP IADD3 ISETP LEA LOP3 MOV PLOP3 PRMT R2P SEL SHF VOTE".split(),
        ("logic", 2),
    ),
}
LATENCIES = {  # clocks until a result is there that the machine code waits for by a scoreboard
    "MUFU": 18, "SHFL": 24, "LDSM": 33, "STS": 12, "SYNCS": 28, "R2UR": 13, "VOTE": 10, "MEMBAR": 60, "FENCE": 10,
}  # fmt: skip
ARRIVAL = 45  # from an arrival at a barrier to the end of a wait for it
DRAIN = 32  # from the end of a product to the end of a wait for it
BEGINS = (0, 100, 200, 300, 400, 500)  # clocks between the first turns of two groups
TURNS = 40
CLOCKS = 200_000  # at most; a replay that takes longer is stuck
_LOW = re.compile(r"/\*([0-9a-f]{4,})\*/.*/\* 0x[0-9a-f]{16} \*/")
_HIGH = re.compile(r"^\s+/\* (0x[0-9a-f]{16}) \*/")
_PRODUCT = re.compile(r"[QH]GMMA\.64x(\d+)x")


@dataclass(frozen=True)
class Step:
    """An instruction of the loop, with what the assembler says of its time.

    Attributes:
      stall: clocks until the warp's next instruction, at least.
      sets, reads: scoreboards that its result and its reading hold, 7 for none.
      waits: a bit for each scoreboard that has to be free.
      barrier: the number of this wait for, or arrival at, a barrier in its turn; -1 of others.
    """

    opcode: str
    operands: str
    stall: int
    sets: int
    reads: int
    waits: int
    barrier: int

    @property
    def base(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def unit(self) -> tuple[str, int]:
        """The unit of its part that it takes, or "", and for how many clocks."""
        if self.base.startswith("U") or self.base == "R2UR":
            return "uniform", 2
        return UNITS.get(self.base, ("", 1))


@dataclass(eq=False)
class Warp:
    """A warp in its loop."""

    steps: list[Step]
    ready: int
    at: int = 0
    turn: int = 0
    busy: list[list[int]] = field(default_factory=lambda: [[] for _ in range(8)])
    products: list[int] = field(default_factory=list[int])
    begins: list[int] = field(default_factory=list[int])

    def is_free(self, clock: int) -> bool:
        """Whether nothing that the next instruction waits for by a scoreboard is under way."""
        step = self.steps[self.at]
        return not any(end > clock for n in range(6) if step.waits >> n & 1 for end in self.busy[n])


class Loop:
    """The two loops of a kernel without tests of a mask: of a group, and of a warp that transposes."""

    def __init__(self, cubin: Path):
        self._words = _control(cubin)
        functions = sass.disassemble(cubin)
        self._function = max(functions, key=lambda f: len(f.instructions))
        blocks = self._function.blocks
        loops = [(to, n) for n, block in enumerate(blocks) for to in block.successors if to <= n]
        attending = [
            path
            for path in (self._path(*loop) for loop in loops if self._has(loop, "MUFU.EX2"))
            if self._has((path[0], path[-1]), "QGMMA", "HGMMA")
        ]
        self.attend = self._steps(min(attending, key=self._length))
        others = [range(a, z + 1) for a, z in loops if self._has((a, z), "LDSM")]
        turning = [loop for loop in others if not self._has((loop[0], loop[-1]), "MUFU")]
        self.transpose = self._steps([*min(turning, key=len)]) if turning else []

    def _has(self, loop: tuple[int, int], *opcodes: str) -> bool:
        blocks = self._function.blocks[loop[0] : loop[1] + 1]
        return any(sass.count(block.instructions, *opcodes) for block in blocks)

    def _path(self, first: int, last: int) -> list[int]:
        """Blocks of a turn in which no wait fails and no maximum moves."""
        path = [first]
        while path[-1] != last:
            block = self._function.blocks[path[-1]]
            is_wait = any("TRYWAIT" in item.opcode for item in block.instructions)
            inner = [n for n in block.successors if path[-1] < n <= last]
            path.append(path[-1] + 1 if is_wait or not inner else max(inner))
        return path

    def _length(self, path: list[int]) -> int:
        return sum(len(self._function.blocks[n].instructions) for n in path)

    def _steps(self, path: list[int]) -> list[Step]:
        seen: Counter[bool] = Counter()
        steps: list[Step] = []
        for item in (item for n in path for item in self._function.blocks[n].instructions):
            word, number = self._words[item.address], -1
            if item.base == "SYNCS":
                is_wait = "TRYWAIT" in item.opcode
                number, seen[is_wait] = seen[is_wait], seen[is_wait] + 1
            fields = (word >> 41 & 15, word >> 46 & 7, word >> 49 & 7, word >> 52 & 63)
            stall, sets, reads, waits = fields
            steps.append(
                Step(item.opcode, item.operands, max(stall, 1), sets, reads, waits, number)
            )
        return steps


def _control(cubin: Path) -> dict[int, int]:
    """The high word of each instruction by its address."""
    words: dict[int, int] = {}
    address = -1
    for line in sass.words(cubin).splitlines():
        if low := _LOW.search(line):
            address = int(low[1], 16)
        elif (high := _HIGH.match(line)) and address >= 0:
            words[address], address = int(high[1], 16), -1
    return words


class Part:
    """A part of a multiprocessor that replays a loop.

    Args:
      begin: clocks between the first instructions of two groups.
      values_wait: which wait of a group in its turn is for values that are transposed.
      slots: of transposed values.
    """

    def __init__(self, loop: Loop, groups: int, begin: int, values_wait: int, slots: int):
        self._groups = [Warp(loop.attend, n * begin) for n in range(groups)]
        self._turning = Warp(loop.transpose, 0) if loop.transpose else None
        self._queue = [*([self._turning] if self._turning else []), *self._groups]
        self._free: Counter[str] = Counter()
        self._tensor, self._values_wait, self._slots = 0, values_wait, slots
        self._handed: list[int] = []  # clocks at which transposes were handed over
        self._released: list[list[int]] = [[] for _ in range(groups)]

    def clocks(self) -> float:
        """Clocks of a turn, behind the first ones."""
        for clock in range(CLOCKS):
            for number, warp in enumerate(self._queue):
                if clock >= warp.ready and self._can(warp, clock):
                    self._issue(warp, clock)
                    self._queue.append(self._queue.pop(number))
                    break
            if min(warp.turn for warp in self._groups) >= TURNS:
                begins = self._groups[0].begins
                return (begins[TURNS - 1] - begins[TURNS // 2]) / (TURNS - 1 - TURNS // 2)
        raise SystemExit("the replay does not come to an end")

    def _can(self, warp: Warp, clock: int) -> bool:
        step = warp.steps[warp.at]
        if not warp.is_free(clock) or self._free[step.unit[0]] > clock:
            return False
        if "DEPBAR" in step.opcode and step.base == "WARPGROUP":
            allowed = int(step.operands.rpartition(",")[2], 16)
            return sum(end > clock for end in warp.products) <= allowed
        if "TRYWAIT" not in step.opcode or self._turning is None:
            return True
        if warp is self._turning:
            ends = [
                [*out, *[CLOCKS] * TURNS][max(warp.turn - self._slots, 0)] for out in self._released
            ]
            is_slot = step.barrier == 1 and warp.turn >= self._slots
            return not is_slot or max(ends) + ARRIVAL <= clock
        if step.barrier != self._values_wait:
            return True
        return len(self._handed) > warp.turn and self._handed[warp.turn] + ARRIVAL <= clock

    def _issue(self, warp: Warp, clock: int) -> None:
        step = warp.steps[warp.at]
        name, taken = step.unit
        if name:
            self._free[name] = clock + taken
        if product := _PRODUCT.match(step.opcode):
            self._tensor = max(clock, self._tensor) + int(product[1]) // 2
            if "gsb0" in step.operands:
                warp.products = [*warp.products[-4:], self._tensor + DRAIN]
        end = clock + LATENCIES.get(step.base, 0)
        warp.busy[step.sets] = [end, *warp.busy[step.sets][:8]]
        warp.busy[step.reads] = [end, *warp.busy[step.reads][:8]]
        if step.barrier == 1 and "ARRIVE" in step.opcode:
            if warp is self._turning:
                self._handed.append(clock)
            else:
                self._released[self._groups.index(warp)].append(clock)
        warp.ready, warp.at = clock + step.stall, warp.at + 1
        if warp.at == len(warp.steps):
            warp.at, warp.turn = 0, warp.turn + 1
            warp.begins.append(clock)


def values_wait_of(loop: Loop) -> int:
    """Which wait of a turn comes before the first product with P, whose operand A is in registers."""
    waits = 0
    for step in loop.attend:
        waits += "TRYWAIT" in step.opcode
        if _PRODUCT.match(step.opcode) and re.match(r"R\d+, R\d+, gdesc", step.operands):
            return waits - 1
    raise SystemExit("no product of the loop has an operand in registers")


def compiled(spec: am.MhaSpec, folder: Path) -> tuple[Path, int, int]:
    """The machine code of a kernel, its groups, and slots of its values."""
    bundle = am.compile(spec, target=TARGET)
    report: Any = bundle.report
    warps = next(role["warps"] for role in report["roles"] if role["role"] == "attend")
    first, last = (int(number) for number in warps.split("-"))
    slots = {entry["name"]: entry["count"] for entry in report["barriers"]}["v full"]
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(bundle.cubin)
    return cubin, (last - first + 1) // GROUP_WARPS, slots


def replayed(loop: Loop, groups: int, slots: int) -> list[float]:
    """Clocks of a turn, for each of `BEGINS`."""
    wait = values_wait_of(loop)
    return [Part(loop, groups, begin, wait, slots).clocks() for begin in BEGINS]


def units(loop: Loop, groups: int) -> dict[str, int]:
    """Clocks of a turn for which each unit of a part is taken, and the tensor core, of all groups."""
    taken: Counter[str] = Counter()
    for steps, warps in ((loop.attend, groups), (loop.transpose, 1)):
        for step in steps:
            name, clocks = step.unit
            taken[name or "none"] += clocks * warps
            taken["issue"] += warps
            if product := _PRODUCT.match(step.opcode):
                taken["tensor core"] += int(product[1]) // 2 * warps
    del taken["none"]
    return dict(taken.most_common())


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", default="e4m3")
    parser.add_argument("--head-dim", type=int, default=128)
    args = parser.parse_args()
    spec = am.mha(
        heads=1, head_dim=args.head_dim, dtype=args.dtype, schedule="mha-registers", tile_order="single"
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        cubin, groups, slots = compiled(spec, Path(name))
        loop = Loop(cubin)
    for what, steps in (("group", loop.attend), ("transposing", loop.transpose)):
        stalls = sum(step.stall for step in steps)
        print(f"a warp, {what}: {len(steps)} instructions, {stalls} clocks of stalls")
    taken = units(loop, groups)
    print(f"clocks of units, {groups} groups:", *(f"{n} {c}," for n, c in taken.items()))
    alone = Part(loop, 1, 0, values_wait_of(loop), slots).clocks()
    found = replayed(loop, groups, slots)
    mean = statistics.mean(found)
    pipe = taken["tensor core"] / mean
    print(f"a turn: {mean:.0f} clocks ({min(found):.0f} to {max(found):.0f}), pipe {pipe:.0%}")
    print(f"a turn of a group alone: {alone:.0f} clocks")


if __name__ == "__main__":
    main()
