"""The tensor core of SM100 and its memory: one queue of products, and ports of each partition.

Rates are those of SemiAnalysis' microbenchmarks of a B200 at 1965 MHz (repository
SemiAnalysisAI/microbench-blackwell, umma_throughput and umma_latency); docs/timing.md.
"""

from __future__ import annotations

import re

from .chips import Values
from .engines import PARTITIONS, Engine
from .record import Multiplication
from .sass import Instruction

LANE_BYTES = 128  # of a register of a warp

_TIMES = re.compile(r"^x(\d+)$")
_LANES = {"16dp256bit": 4, "16dp128bit": 2}  # registers of x1; other shapes have one


def service_clocks(one: Multiplication) -> float:
    """Clocks for which a product of 32 bytes of K keeps the tensor core, once the queue is full.

    With A in shared memory, at least the clocks in which the operands come at 128 bytes a clock.
    """
    rows = one.m // one.ctas
    if one.ctas == 2:
        base = one.n / 2 if rows == 128 else one.n / 4
        least = 18.6 if rows == 64 else 0.0
        return max(base, least if one.a_in_tmem else (36 if rows == 128 else 18) + one.n / 8)
    if one.a_in_tmem:
        return one.n / 2
    return max(one.n / 2, 44.0 if rows == 128 else 0.0, (32 if rows == 128 else 16) + one.n / 4)


class TensorQueue:
    """The tensor core of a multiprocessor: products of all warps in order of issue."""

    def __init__(self, values: Values, line: Engine, keep: bool):
        self.values, self.line, self.keep = values, line, keep

    def multiply(self, now: float, one: Multiplication) -> float:
        """When the product is done."""
        idle = self.values["mma_fill"] + (0 if one.a_in_tmem else self.values["mma_fetch"])
        if one.ctas == 2:
            idle += self.values["mma_pair"]
        ready = now + idle if self.line.free <= now else now
        _, end = self.line.take(ready, service_clocks(one), "products", self.keep)
        return end


class Ports:
    """The ports of tensor memory: each partition reads and writes its quarter, in order."""

    def __init__(self, values: Values):
        self.values = values
        self.reads = [Engine() for _ in range(PARTITIONS)]
        self.writes = [Engine() for _ in range(PARTITIONS)]

    def load(self, partition: int, now: float, one: Instruction) -> float:
        """When the registers of an LDTM are there."""
        clocks = moved_bytes(one) / self.values["tmem_read_bytes"]
        _, end = self.reads[partition].take(now, clocks, "", False)
        return end + self.values["tmem_latency"]

    def store(self, partition: int, now: float, one: Instruction) -> float:
        """When the registers of an STTM have been written."""
        clocks = moved_bytes(one) / self.values["tmem_write_bytes"]
        _, end = self.writes[partition].take(now, clocks, "", False)
        return end


def moved_bytes(one: Instruction) -> int:
    """Bytes that a warp's LDTM or STTM moves."""
    times = next((int(m[1]) for part in one.suffixes if (m := _TIMES.match(part))), 1)
    return times * max((_LANES.get(part, 1) for part in one.suffixes), default=1) * LANE_BYTES
