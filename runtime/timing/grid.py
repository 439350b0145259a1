"""A whole launch from replays of some of its clusters: waves of CTAs."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from .chips import Chip, Values

WARP_LANES = 32
REGISTER_UNIT = 256  # registers of a warp are given in such pieces; CUDA occupancy rules
RESERVED_SMEM_BYTES = 1024  # of each CTA, for the system


@dataclass(frozen=True)
class Composed:
    """The clocks of a launch.

    Attributes:
      resident: CTAs on a multiprocessor at a time. waves: of clusters, rounded up.
      busy: the part of the multiprocessors' time in which they have a CTA.
    """

    clocks: float
    resident: int
    waves: int
    busy: float


def resident_ctas(chip: Chip, *, threads: int, smem_bytes: int, registers: int) -> int:
    """How many CTAs fit on a multiprocessor, at least 1.

    Args:
      registers: of a thread at launch; 0 if unknown.
    """
    warps = -(-threads // WARP_LANES)
    limits = [chip.warps // warps, chip.smem_bytes // (smem_bytes + RESERVED_SMEM_BYTES)]
    if registers:
        per_warp = -(-registers * WARP_LANES // REGISTER_UNIT) * REGISTER_UNIT
        limits.append(chip.registers // (per_warp * warps))
    return max(1, min(limits))


def compose(
    durations: Sequence[float], *, chip: Chip, values: Values, cluster_ctas: int, resident: int
) -> Composed:
    """Places clusters on the chip in order, each on the multiprocessors that are free first.

    Args:
      durations: clocks of each cluster of the grid, in launch order.
      cluster_ctas: CTAs of a cluster.
    """
    places = max(1, chip.sms // cluster_ctas * resident)
    free = [0.0] * min(places, max(1, len(durations)))
    busy = 0.0
    for duration in durations:
        whole = duration + values["cta_latency"]
        begin = heapq.heappop(free)
        heapq.heappush(free, begin + whole)
        busy += whole
    end = max(free)
    return Composed(
        clocks=end + values["launch_latency"],
        resident=resident,
        waves=-(-len(durations) // places),
        busy=busy / (end * places) if end else 0.0,
    )
