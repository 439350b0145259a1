"""Simulates attention of a long sequence on up to 1,024 GPUs: kernels, copies, NCCL, links.

    python bench/simulate_distributed.py --length 10485760 --ranks 1024 --scheme 2d --gpu B200

Each rank is a simulated process with the steps of `attn_mlir.distributed`: kernels hold
multiprocessors, copies and messages share the ports of GPUs, NCCL's kernels wait for
multiprocessors and for the rank at the other end. The simulation shares rates of GPUs, gaps and the
table of NCCL's overhead with `attn_mlir.parallel`, but no formula of its `schemes`.
`bench/predict_distributed.py` compares both with measured times.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import math
import sys
import time
from dataclasses import dataclass
from typing import Any

from attn_mlir.bench.ranks.events import (
    Clock,
    Countdown,
    Event,
    Flow,
    Multiprocessors,
    Port,
    Process,
)
from attn_mlir.errors import AttnError, SpecError
from attn_mlir.parallel import GPUS, Gpu, Links, Problem
from attn_mlir.parallel.calls import KERNEL, MAX_SLOTS, OURS, Calls, Software
from attn_mlir.parallel.gpus import gpu_named
from attn_mlir.parallel.links import BARRIER, COPY_LATENCY, HOP, LATENCY, NODE_HOP, NODE_LATENCY
from attn_mlir.parallel.links import overhead as nccl_overhead
from attn_mlir.parallel.plan import GB, INTER

TILE = 128  # queries of a work tile, keys of a step of its loop
NCCL_SMS = 16  # multiprocessors of one NCCL kernel; assumption
DISPATCH = 2e-6  # seconds from an event to the start of another stream's kernel that waits for it
Call = tuple[int, int, int, bool, bool]  # rows, keys, heads, square, backward
MOST_TILES = 100_000  # work tiles that are scheduled one by one; above, a formula is used


@functools.cache
def kernel_seconds(
    rows: int, keys: int, heads: int, is_square: bool, per_key: float, sms: int, extra: int
) -> float:
    """Seconds of a call whose work tiles start, the longest first, on the next free multiprocessor.

    Args:
      rows, keys: queries and keys of a sequence.
      heads: query heads of all sequences together.
      is_square: whether the call is causal, with equally many rows and keys.
      per_key: seconds of a work tile for each key.
      sms: multiprocessors of the kernel.
      extra: cost of prologue and epilogue of a work tile, in keys.
    """
    tiles = -(-rows // TILE)
    if not is_square:
        turns = -(-tiles * heads // sms)
        return turns * (TILE * -(-keys // TILE) + extra) * per_key
    lengths = [min(keys, TILE * (i + 1)) + extra for i in reversed(range(tiles))]
    if tiles * heads > MOST_TILES:
        return (sum(lengths) * heads / sms + lengths[-1] / 2) * per_key
    free = [0.0] * sms
    for length in lengths:
        for _ in range(heads):
            heapq.heapreplace(free, free[0] + length)
    return max(free) * per_key


@dataclass(frozen=True)
class Setting:
    """The problem, the GPU, the links, and the implementation that is simulated."""

    problem: Problem
    gpu: Gpu
    links: Links
    software: Software = OURS

    @property
    def calls(self) -> Calls:
        """The rates of calls; their times are simulated."""
        return Calls(self.gpu, self.problem, self.software)

    def call_seconds(self, rows: int, keys: int, heads: int, square: bool, backward: bool) -> float:
        """Seconds of a call of attention at burst speed."""
        p, calls = self.problem, self.calls
        rate, speed = calls.rate(backward), calls.speed(backward) / self.gpu.sms
        if square and rate.causal_decay_keys:
            speed /= 1 + keys / rate.causal_decay_keys
        per_key = p.score_flops(backward) * TILE / speed
        call = rows, keys, heads * p.batch, square, per_key, calls.sms, rate.overhead_keys
        return kernel_seconds(*call)


class Rank:
    """One GPU: its multiprocessors, its ports, and its remaining time at full clock."""

    def __init__(self, clock: Clock, s: Setting, times: dict[Call, float]) -> None:
        self.clock, self.s, self._times = clock, s, times
        self.sms = Multiprocessors(clock, s.gpu.sms, s.problem.sm_margin)
        self.near = Port(s.links.intra), Port(s.links.intra)  # out, in
        self.far = Port(s.links.inter), Port(s.links.inter)
        self.attending = 0.0
        self._allowance = [0.0, 0.0]
        if s.problem.is_isolated:
            self._allowance = [s.calls.rate(backward).burst_seconds for backward in (False, True)]

    def attend(self, rows: int, keys: int, heads: int, square: bool, backward: bool) -> Event:
        """Issues a call of attention; the event happens at its end, gaps included."""
        call = rows, keys, heads, square, backward
        if call not in self._times:
            self._times[call] = self.s.call_seconds(*call)
        rate, seconds = self.s.calls.rate(backward), self._times[call]
        fast = min(seconds, self._allowance[backward])
        self._allowance[backward] -= fast
        seconds = fast + (seconds - fast) * rate.burst / rate.sustained
        self.attending += seconds
        return self.sms.attend((seconds + self.s.software.kernels * KERNEL) * self.s.calls.sms)

    def moved(self, *counts: float) -> float:
        """Seconds of one kernel for each count, which reads and writes that many bytes in total."""
        return sum(x / self.s.gpu.memory_bandwidth + KERNEL for x in counts if x)


class Nccl:
    """An NCCL call of a group: one kernel on each rank, which wait for each other.

    Attributes:
      over: for each rank, the event of the end of its kernel.
    """

    def __init__(self, cluster: Cluster, group: list[int], key: object) -> None:
        self.cluster, self.group, self._key, self._left = cluster, group, key, len(group)
        self.here = [Event() for _ in group]
        self.over = [Event() for _ in group]

    def begin(self, place: int) -> Event:
        """Issues the kernel of one rank, which then waits for multiprocessors."""
        clock, rank = self.cluster.clock, self.cluster.ranks[self.group[place]]

        def dispatched() -> None:
            rank.sms.take(NCCL_SMS).then(self.here[place].happen)

        clock.after(DISPATCH, dispatched)
        return self.over[place]

    def end(self, place: int) -> None:
        rank = self.cluster.ranks[self.group[place]]
        self._left -= 1
        if not self._left:
            del self.cluster.kernels[self._key]
        rank.sms.release(NCCL_SMS)
        self.over[place].happen()


class Cluster:
    """All ranks and the links between them."""

    def __init__(self, s: Setting) -> None:
        self.s, self.clock = s, Clock()
        times: dict[Call, float] = {}  # cached, since many ranks make the same calls
        self.ranks = [Rank(self.clock, s, times) for _ in range(s.problem.ranks)]
        self.kernels: dict[object, Any] = {}

    def node(self, rank: int) -> int:
        return rank // self.s.links.ranks_per_node

    def flow(self, source: int, target: int, count: float) -> Flow:
        a, b = self.ranks[source], self.ranks[target]
        is_near = self.node(source) == self.node(target)
        ports = (a.near[0], b.near[1]) if is_near else (a.far[0], b.far[1])
        return Flow(self.clock, count, ports)

    def latency(self, group: list[int]) -> float:
        return LATENCY if self.node(group[0]) == self.node(group[-1]) else NODE_LATENCY

    def together(self, group: list[int], name: object) -> Event:
        """A barrier of a group; the event happens when all its ranks have called."""
        key = name, group[0], group[-1]
        found: Countdown | None = self.kernels.get(key)
        if found is None:
            found = self.kernels[key] = Countdown(len(group))
        found.one()
        return found

    def pull(self, source: int, target: int, count: float) -> Event:
        """A copy by the target's copy engine, within a node."""
        over = Event()

        def begin() -> None:
            self.flow(source, target, count).then(over.happen)

        self.clock.after(COPY_LATENCY, begin)
        return over

    def shift(self, group: list[int], place: int, name: object, count: float) -> Event:
        """Sends to the next rank of a ring and receives from the previous one, over NCCL."""
        key = "shift", group[0], group[-1], name
        kernel: Nccl | None = self.kernels.get(key)
        if kernel is None:
            kernel = self.kernels[key] = Nccl(self, group, key)
            self._connect(kernel, count)
        return kernel.begin(place)

    def _connect(self, kernel: Nccl, count: float) -> None:
        """Sends between neighbours whose kernels both run; a kernel ends with its two messages."""
        group, clock, size = kernel.group, self.clock, len(kernel.group)
        before = self.latency(group) + nccl_overhead("shift", self.s.links.curve or size, count)
        parts = [Countdown(2) for _ in group]
        for place in range(size):
            following = (place + 1) % size
            both = Countdown(2)
            kernel.here[place].then(both.one)
            kernel.here[following].then(both.one)

            def sent(a: int = place, b: int = following) -> None:
                def begin() -> None:
                    flow = self.flow(group[a], group[b], count)
                    flow.then(parts[a].one)
                    flow.then(parts[b].one)

                clock.after(before, begin)

            both.then(sent)
            parts[place].then(lambda place=place: kernel.end(place))

    def collective(
        self, kind: str, group: list[int], place: int, name: object, count: float
    ) -> Event:
        """An all-gather or an all-to-all over NCCL.

        Traffic is uniform, so two flows stand for a rank's traffic: one from its neighbour in the
        node, one from the rank with its local number in the previous node.

        Args:
          count: bytes of a rank's part (all-gather), or of all its parts (all-to-all).
        """
        key = kind, group[0], group[-1], name
        kernel: Nccl | None = self.kernels.get(key)
        if kernel is None:
            kernel = self.kernels[key] = Nccl(self, group, key)
            self._exchange(kernel, kind, count)
        return kernel.begin(place)

    def _exchange(self, kernel: Nccl, kind: str, count: float) -> None:
        group, clock, size = kernel.group, self.clock, len(kernel.group)
        near = sum(self.node(x) == self.node(group[0]) for x in group)
        nodes, delay = size // near, self.latency(group)
        curve = self.s.links.curve or size
        if kind == "gather":
            delay += nccl_overhead("gather", curve, size * count)
            within, across = (size - 1) * count, (size - near) * count / near
            delay += (size - nodes) * HOP + nodes * NODE_HOP if nodes > 1 else 0.0
        else:
            delay += nccl_overhead("swap", curve, count)
            within, across = count * (near - 1) / size, count * (size - near) / size
        ready = Countdown(size)
        for place in range(size):
            kernel.here[place].then(ready.one)

        def begin() -> None:
            for place, rank in enumerate(group):
                first = place - place % near
                over = Countdown(2 if nodes > 1 else 1)
                over.then(lambda place=place: kernel.end(place))
                neighbour = group[first + (place + 1 - first) % near]
                self.flow(rank, neighbour, within).then(over.one)
                if nodes > 1:
                    self.flow(rank, group[(place + near) % size], across).then(over.one)

        ready.then(lambda: clock.after(delay, begin))


def ring(
    c: Cluster, group: list[int], place: int, tokens: int, heads: int, message: int,
    pulled: bool, backward: bool,
) -> Process:  # fmt: skip
    """The process of a rank in a ring of keys, and in the backward pass of their gradients.

    Args:
      group: the ranks of the ring.
      place: the index of the rank in `group`.
      tokens, heads: tokens and query heads of a rank.
      message: bytes of K and V of a rank.
      pulled: whether copy engines pull the messages; else NCCL sends them.
    """
    p, size, rank = c.s.problem, len(group), c.ranks[group[place]]
    half, software = tokens // 2, c.s.software
    o_bytes = p.batch * tokens * heads * p.v_head_dim * 2
    q_bytes = p.batch * tokens * heads * p.head_dim * 2
    if software.packs and size > 1:
        yield rank.moved(2 * message, 2 * message if pulled else 0)
    if pulled and size > 1:
        yield c.together(group, ("barrier", backward))
        yield BARRIER
    arrived: Event | None = None
    gradient: Event | None = None
    used = 0
    for step in range(size):
        if arrived is not None:
            yield arrived
        source = (place - step) % size
        arrived = None
        if step + 1 < size:
            if pulled:
                arrived = c.pull(group[(source - 1) % size], group[place], message)
            else:
                arrived = c.shift(group, place, (step, backward), message)
        if not p.is_causal:
            yield rank.attend(tokens, tokens, heads, False, backward)
        elif step == 0:
            yield rank.attend(tokens, tokens, heads, True, backward)
        elif source < place:
            yield rank.attend(tokens, half, heads, False, backward)
        else:
            yield rank.attend(half, tokens, heads, False, backward)
        used += 1
        if backward:
            yield rank.moved(2 * message, 6 * q_bytes, 4 * message, 2 * message)
            if size > 1:
                if gradient is not None:
                    yield gradient
                    yield rank.moved(6 * message)
                gradient = c.shift(group, place, ("gradient", step), 2 * message)
        elif size > 1 and software.merges_pairwise and step:
            is_half = p.is_causal and source > place
            yield rank.moved(5 * o_bytes / (2 if is_half else 1))
        elif size > 1 and not software.merges_pairwise and used == MAX_SLOTS and step + 1 < size:
            yield rank.moved(2 * MAX_SLOTS * o_bytes + 2 * o_bytes, 4 * o_bytes) + 2 * KERNEL
            used = 1
    if gradient is not None:
        yield gradient
    if not backward and size > 1 and not software.merges_pairwise:
        yield rank.moved(2 * used * o_bytes + o_bytes)


def exchanged(
    c: Cluster, group: list[int], place: int, backward: bool
) -> tuple[Process, Process, int, int, int]:
    """The processes of the exchanges of heads before and after attention.

    Returns:
      Both processes; then tokens, query heads, and bytes of K and V of a rank between them.
    """
    p, size, rank = c.s.problem, len(group), c.ranks[group[place]]
    copies = math.lcm(p.kv_heads, size)
    tokens = p.batch * p.own * 2
    operands = tokens * (p.heads * p.head_dim + copies * (p.head_dim + p.v_head_dim))
    results = tokens * p.heads * (p.v_head_dim + 2)

    def move(count: int, times: int, is_last: bool) -> Process:
        passes = [2.0 * count] * times
        if not is_last:
            yield rank.moved(*passes)
        yield c.collective("swap", group, place, (is_last, backward), count)
        if is_last:
            yield rank.moved(*passes)

    before, after = c.s.software.passes
    message = p.kv_bytes * copies // p.kv_heads
    return (
        move(operands, before, False), move(results, after, True), p.own * size, p.heads // size,
        message,
    )  # fmt: skip


def of_rank(c: Cluster, number: int, scheme: str) -> Process:
    """The process of one rank under a scheme."""
    p, group = c.s.problem, list(range(c.s.problem.ranks))
    for backward in p.passes:
        if scheme in ("ring-pull", "ring-nccl"):
            is_pulled = scheme == "ring-pull"
            yield from ring(c, group, number, p.own, p.heads, p.kv_bytes, is_pulled, backward)
        elif scheme == "gather":
            yield from gather(c, group, number, backward)
        else:
            inner = p.ranks if scheme == "ulysses" else min(p.ranks, c.s.links.ranks_per_node)
            first = number - number % inner
            near = list(range(first, first + inner))
            outer = list(range(number % inner, p.ranks, inner))
            before, after, tokens, heads, message = exchanged(c, near, number - first, backward)
            yield from before
            across = number // inner
            yield from ring(c, outer, across, tokens, heads, message, False, backward)
            yield from after


def gather(c: Cluster, group: list[int], place: int, backward: bool) -> Process:
    """The process of a rank that gathers K and V, by copy engines within a node, else over NCCL."""
    p, size, rank = c.s.problem, len(group), c.ranks[place]
    half, software = p.own // 2, c.s.software
    if size > 1:
        if software.packs and c.s.links.nodes(size) == 1:
            yield rank.moved(2 * p.kv_bytes, 2 * p.kv_bytes, 2 * p.kv_bytes) + 4 * KERNEL
            yield c.together(group, ("barrier", backward))
            yield BARRIER
            for step in range(1, size):
                for _ in range(4):  # halves of K and of V
                    yield c.pull((place - step) % size, place, p.kv_bytes / 4)
        else:
            yield c.collective("gather", group, place, backward, p.kv_bytes)
    whole = p.own * size
    calls = [(half, half, True), (half, half, True), (half, whole - half, False)]
    for rows, keys, square in calls if p.is_causal else [(p.own, whole, False)]:
        if keys:
            yield rank.attend(rows, keys, p.heads, square, backward)
    if not backward and p.is_causal:
        o_bytes = p.o_bytes / 2
        yield rank.moved((5 if software.merges_pairwise else 2 * 2 + 1) * o_bytes)
    if backward and size > 1:
        gradients = p.kv_gradient_bytes * size
        yield rank.moved(2 * gradients, 2 * gradients, 2 * gradients, 8 * p.q_bytes)
        yield c.collective("swap", group, place, "gradients", gradients)
        yield rank.moved(2 * gradients)


@dataclass(frozen=True)
class Simulated:
    """The result of a simulation.

    Attributes:
      seconds: time of the slowest rank.
      attention: seconds in attention kernels, of the rank that has the least.
      events: number of simulated events.
    """

    seconds: float
    attention: float
    events: int


def simulate(scheme: str, setting: Setting) -> Simulated:
    """Runs a scheme of `attn_mlir.parallel.SCHEMES`.

    Raises:
      SpecError: it cannot run on these ranks.
    """
    p, links = setting.problem, setting.links
    inner = min(p.ranks, links.ranks_per_node)
    if scheme == "ring-pull" and links.nodes(p.ranks) > 1:
        raise SpecError("ring-pull is for ranks of one node")
    heads = {"ulysses": p.ranks, "2d": inner}.get(scheme, 1)
    if p.heads % heads or p.ranks % inner:
        raise SpecError(f"{scheme} does not fit {p.ranks} ranks and {p.heads} heads")
    cluster = Cluster(setting)
    over = [cluster.clock.start(of_rank(cluster, i, scheme)) for i in range(p.ranks)]
    cluster.clock.run()
    assert all(x.is_over for x in over), "a rank waits for ever"
    least = min(x.attending for x in cluster.ranks)
    return Simulated(cluster.clock.now, least, cluster.clock.count)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--length", type=int, default=2**20)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--scheme", default="2d", help="ring-pull, ring-nccl, gather, ulysses, 2d")
    parser.add_argument("--gpu", default="H200", help=", ".join(GPUS))
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--inter-gbs", type=float, default=INTER / GB)
    parser.add_argument("--sm-margin", type=int, default=0)
    parser.add_argument("--full", action="store_true", help="no causal mask")
    parser.add_argument("--training", action="store_true", help="both passes")
    args = parser.parse_args()
    try:
        gpu = gpu_named(args.gpu)
        problem = Problem(
            args.length, args.heads, args.kv_heads, ranks=args.ranks, is_causal=not args.full,
            is_training=args.training, sm_margin=args.sm_margin,
        )  # fmt: skip
        links = Links(gpu.intra_bandwidth, args.inter_gbs * GB, args.ranks_per_node)
        begin = time.perf_counter()
        found = simulate(args.scheme, Setting(problem, gpu, links))
    except AttnError as error:
        parser.error(str(error))
    took = time.perf_counter() - begin
    print(
        f"{args.scheme} on {args.ranks} x {gpu.name}: {found.seconds * 1e3:.3f} ms, of them "
        f"{found.attention * 1e3:.3f} in attention; {found.events} events in {took:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
