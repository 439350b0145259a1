"""Times of messages between GPUs, by NCCL and by copy engines."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from attn_mlir.errors import SpecError, shown

Collective = Literal["gather", "swap", "shift"]

MIB = 2**20
SIZES = (1 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
# GB/s that a rank receives over NCCL 2.28.9, H200, NVLS off, 27 November 2026, by `SIZES`: bytes of
# the whole output (gather), of all parts that a rank sends (swap), of the message (shift).
MEASURED: dict[tuple[Collective, int], tuple[float, ...]] = {
    ("gather", 2): (35, 148, 214, 244, 268),
    ("swap", 2): (33, 162, 237, 281, 332),
    ("shift", 2): (36, 201, 269, 303, 359),
    ("gather", 4): (43, 188, 265, 304, 326),
    ("swap", 4): (46, 189, 266, 308, 335),
    ("shift", 4): (29, 133, 157, 302, 360),
}
REFERENCE = 385e9  # bytes/s that copy engines reached on the same link
LATENCY = 12e-6  # of a small NCCL call in a graph: 10 to 14 us (same day)
SMALL = 16 * 1024  # bytes up to which a call takes no longer
COPY_LATENCY = 10e-6  # of a copy and its event; assumption: 75 us were measured within one process
BARRIER = 10e-6  # of symmetric memory; assumption, that of a small NCCL call
NODE_LATENCY = 25e-6  # of a NCCL call between nodes: 20 to 40 us over 8 and more; assumption
HOP, NODE_HOP = 2e-6, 14e-6  # of a step of NCCL's ring within and between nodes; assumption


@dataclass(frozen=True)
class Links:
    """The links of a cluster; bandwidths are bytes/s that one GPU receives in one direction.

    Attributes:
      intra: bandwidth of long copies within a node.
      inter: bandwidth between nodes, of one GPU's port. Usual are 46 to 48 of the 50 GB/s of NDR
        InfiniBand (NVIDIA/nccl-tests issue 290); four nodes with 8 ports each reach 365.8 GB/s,
        45.7 for each port (issue 309).
      ranks_per_node: GPUs of a node.
      curve: number of ranks, 2 or 4, whose row of `MEASURED` gives NCCL's overhead; 0: 2 for calls
        of two ranks, else 4.
    """

    intra: float
    inter: float
    ranks_per_node: int = 8
    curve: int = 0

    def __post_init__(self) -> None:
        for name, value in (("intra", self.intra), ("inter", self.inter)):
            if not (math.isfinite(value) and value > 0):
                raise SpecError(f"{name}-node bandwidth must be above 0 bytes/s, got {value}")
        if self.ranks_per_node < 1:
            raise SpecError(f"ranks_per_node must be at least 1, got {shown(self.ranks_per_node)}")
        if self.curve not in (0, 2, 4):
            raise SpecError(f"curve must be 0, 2 or 4, got {shown(self.curve)}")

    @property
    def of_node(self) -> Links:
        """The links with all ranks in one node."""
        return replace(self, ranks_per_node=2**31)

    def nodes(self, ranks: int) -> int:
        """Number of nodes that the ranks occupy."""
        return -(-ranks // self.ranks_per_node)

    def copy(self, count: float) -> float:
        """Seconds of a copy of `count` bytes by copy engines, within a node."""
        return COPY_LATENCY + count / self.intra if count else 0.0

    def shift(self, count: float, ranks: int) -> float:
        """Seconds in which all ranks of a ring send to the next rank over NCCL.

        Args:
          count: bytes that each rank sends.
          ranks: ranks of the ring; its slowest pair determines the time.
        """
        if ranks == 1 or not count:
            return 0.0
        slow = min(self.inter, self.intra) if self.nodes(ranks) > 1 else self.intra
        return count / slow + self._latency(ranks) + overhead("shift", self.curve or ranks, count)

    def gather(self, count: float, ranks: int) -> float:
        """Seconds of an all-gather: NCCL's rings use the ports of all GPUs of a node.

        Args:
          count: bytes of each rank's part.
        """
        if ranks == 1 or not count:
            return 0.0
        nodes, whole = self.nodes(ranks), count * ranks
        bandwidth = self.intra
        hops = (ranks - nodes) * HOP + nodes * NODE_HOP
        if nodes > 1:
            bandwidth = min(bandwidth, self.inter * self.ranks_per_node)
        else:
            hops = 0.0
        extra = overhead("gather", self.curve or ranks, whole)
        return (whole - count) / bandwidth + self._latency(ranks) + extra + hops

    def swap(self, count: float, ranks: int) -> float:
        """Seconds of an all-to-all.

        Args:
          count: bytes that a rank has for all ranks together, itself included.
        """
        if ranks == 1 or not count:
            return 0.0
        near = min(ranks, self.ranks_per_node)
        far = (ranks - near) / ranks * count / self.inter
        within = (near - 1) / ranks * count / self.intra
        return (
            max(far, within) + self._latency(ranks) + overhead("swap", self.curve or ranks, count)
        )

    def _latency(self, ranks: int) -> float:
        return NODE_LATENCY if self.nodes(ranks) > 1 else LATENCY


def overhead(kind: Collective, ranks: int, count: float) -> float:
    """Seconds that NCCL takes beyond its latency and a transfer at the speed of copy engines.

    They are interpolated between the measured sizes, linearly in the logarithm of bytes.
    """
    of_ranks = 2 if ranks == 2 else 4
    measured = MEASURED[kind, of_ranks]
    share = 1.0 if kind == "shift" else (of_ranks - 1) / of_ranks  # of the bytes, that travel
    found = [
        max(0.0, size * share * (1 / (rate * 1e9) - 1 / REFERENCE) - LATENCY)
        for size, rate in zip(SIZES, measured, strict=True)
    ]
    if count >= SIZES[-1]:
        return found[-1] * count / SIZES[-1]
    points = [(SMALL, 0.0), *zip(SIZES, found, strict=True)]
    for (x0, y0), (x1, y1) in pairwise(points):
        if count < x1:
            place = max(0.0, math.log(count / x0) / math.log(x1 / x0))
            return y0 + (y1 - y0) * place
    raise AssertionError
