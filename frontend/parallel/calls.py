"""Times of calls on one GPU: attention at burst speed, merges, copies."""

from __future__ import annotations

from dataclasses import dataclass

from attn_mlir.parallel.gpus import Gpu, Rate, head_dim_factor
from attn_mlir.parallel.problem import Problem

TILE_ROWS = 128  # queries of a work tile
KERNEL = 3.5e-6  # seconds from the end of a kernel to the start of the next one; assumption
MAX_SLOTS = 8  # partial O's that `attn_mlir.distributed.merging` keeps before it merges them


@dataclass(frozen=True)
class Software:
    """The implementation of context parallelism that is modelled.

    Attributes:
      name: the name in tables.
      forward, backward: rates of its attention kernels; None: those of the GPU's row, ours.
      merges_pairwise: whether each partial O is merged into a running f32 O; else up to eight
        partial O are kept, and merged at once.
      packs: whether K and V are copied into one message and, if pulled, into symmetric memory; an
        all-gather within a node is then pulled.
      kernels: kernels that are launched for each call of attention, small ones included.
      passes: how often an exchange of heads copies (q, k and v; O), beside the transfer.
    """

    name: str = "attn_mlir.distributed"
    forward: Rate | None = None
    backward: Rate | None = None
    merges_pairwise: bool = False
    packs: bool = True
    kernels: int = 3
    passes: tuple[int, int] = (2, 3)


OURS = Software()


@dataclass(frozen=True)
class Calls:
    """Times of one rank's calls, in seconds."""

    gpu: Gpu
    problem: Problem
    software: Software = OURS

    @property
    def sms(self) -> int:
        """Multiprocessors that attention uses."""
        return self.gpu.sms - self.problem.sm_margin

    def rate(self, backward: bool) -> Rate:
        """The rate of the attention kernels of a pass."""
        if backward:
            return self.software.backward or self.gpu.backward
        return self.software.forward or self.gpu.forward

    def speed(self, backward: bool) -> float:
        """Burst rate of a pass at the problem's head sizes, in FLOP/s."""
        p = self.problem
        return self.rate(backward).burst * head_dim_factor(p.head_dim, p.v_head_dim)

    def attention(
        self, rows: int, keys: int, heads: float, *, is_square: bool = False, backward: bool = False
    ) -> float:
        """Seconds of one call at burst speed.

        Args:
          rows, keys: queries and keys of each sequence.
          heads: query heads.
          is_square: whether the call is causal, with equally many rows and keys; else it has no
            mask.
          backward: whether it is the backward pass.
        """
        p, rate = self.problem, self.rate(backward)
        if not rows or not keys:
            return 0.0
        mean = (keys + min(TILE_ROWS, keys)) / 2 if is_square else keys
        decay = 1 + keys / rate.causal_decay_keys if is_square and rate.causal_decay_keys else 1.0
        speed = self.speed(backward) / self.gpu.sms / decay
        per_key = p.score_flops(backward) * TILE_ROWS / speed
        tiles = -(-rows // TILE_ROWS) * heads * p.batch
        if is_square:  # the longest tiles come first, so all multiprocessors end together
            longest = (keys + rate.overhead_keys) * per_key
            return max(tiles * (mean + rate.overhead_keys) * per_key / self.sms, longest)
        turns = max(1.0, -(-tiles // self.sms))
        return turns * (mean + rate.overhead_keys) * per_key

    def throttled(self, seconds: float, backward: bool = False) -> float:
        """Seconds under the power limit of work that takes `seconds` at burst speed."""
        rate = self.rate(backward)
        burst = rate.burst_seconds if self.problem.is_isolated else 0.0
        return min(seconds, burst) + max(0.0, seconds - burst) * rate.burst / rate.sustained

    def copied(self, count: float, times: int = 1) -> float:
        """Seconds of `times` kernels, each of which reads and writes `count` bytes."""
        return times * (2 * count / self.gpu.memory_bandwidth + KERNEL) if count else 0.0

    def merge(self, parts: int, o_bytes: float) -> float:
        """Seconds in which partial results are merged into O.

        Args:
          parts: partial results of the row that has the most.
          o_bytes: bytes of O of one rank, 2 for each element.
        """
        if parts <= 1:
            return 0.0
        if self.software.merges_pairwise:  # reads a part and the sum, writes the sum
            return (parts - 1) * ((1 + 2 + 2) * o_bytes / self.gpu.memory_bandwidth + KERNEL)
        between = max(0, -(-(parts - MAX_SLOTS) // (MAX_SLOTS - 1)))
        reads = 2 * o_bytes * (parts + between)  # f32: each part, and each intermediate sum
        writes = o_bytes + 6 * o_bytes * between  # O; a sum in f32 and its copy into the first slot
        kernels = 1 + 4 * between
        return (reads + writes) / self.gpu.memory_bandwidth + kernels * KERNEL
