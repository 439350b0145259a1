"""The cost of each scheme in closed form: time, bytes, memory, and why a scheme is impossible.

Transfers over NCCL wait until an attention kernel that holds all multiprocessors has ended: a step
of a ring takes attention plus transfer. With `sm_margin` they overlap, and a step takes the longer
of both. Transfers by copy engines always overlap, but reach only the GPUs of one node.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.parallel.calls import KERNEL, MAX_SLOTS, OURS, Calls, Software
from attn_mlir.parallel.gpus import Gpu
from attn_mlir.parallel.links import BARRIER, Links
from attn_mlir.parallel.problem import Problem

GATHERED_COPIES = 4  # of one rank: halves of K and of V
LSE_ELEMENTS = 2  # 16-bit columns that hold a head's LSE beside its O (distributed/packing.py)


@dataclass(frozen=True)
class Prediction:
    """The cost of a scheme for one rank and one layer.

    Attributes:
      scheme: its name in `SCHEMES`.
      seconds: expected time, the sum of the next three.
      attention: seconds in attention kernels.
      exposed: seconds of transfers that do not overlap with attention.
      other: seconds of copies, merges and gaps between kernels.
      bytes_sent: bytes that a rank sends in all passes.
      memory_bytes: bytes that a rank needs, operands and gradients included.
      limit: seconds of attention alone on ideal ranks, as of `limit`.
      refusal: why the scheme cannot run; "" if it can.
    """

    scheme: str
    seconds: float
    attention: float
    exposed: float
    other: float
    bytes_sent: float
    memory_bytes: float
    limit: float
    refusal: str = ""

    @property
    def is_possible(self) -> bool:
        return not self.refusal


@dataclass(frozen=True)
class _Cost:
    """Seconds of one pass.

    Attributes:
      attention: attention kernels, at burst speed.
      other: copies, merges and gaps between kernels.
      exposed: transfers that do not overlap with attention.
      hidden: transfers that overlap with attention, as steps (count, attention, transfer).
    """

    attention: float = 0.0
    other: float = 0.0
    exposed: float = 0.0
    hidden: tuple[tuple[int, float, float], ...] = ()  # steps: count, attention, transfer beside it


@dataclass(frozen=True)
class _Setting:
    calls: Calls
    links: Links

    @property
    def problem(self) -> Problem:
        """The problem of `calls`."""
        return self.calls.problem

    @property
    def inner(self) -> int:
        """Number of ranks of a node that take part."""
        return min(self.problem.ranks, self.links.ranks_per_node)

    @property
    def inner_message(self) -> float:
        """Bytes of K and V that a rank sends in a ring between nodes, after heads are exchanged."""
        p = self.problem
        return p.kv_bytes * math.lcm(p.kv_heads, self.inner) / p.kv_heads


def _ring_calls(s: _Setting, steps: int, rows: int, heads: float, *, backward: bool) -> float:
    """Seconds of all attention calls of a balanced ring of `steps` sources of keys."""
    p = s.problem
    half = -(-rows // 2)
    first = s.calls.attention(rows, rows, heads, is_square=p.is_causal, backward=backward)
    wide = s.calls.attention(rows, half, heads, backward=backward)
    tall = s.calls.attention(half, rows, heads, backward=backward)
    rest = max(wide, tall) if p.is_causal else first
    return first + (steps - 1) * rest


def _ring(
    s: _Setting, ranks: int, rows: int, heads: float, message: float, pulled: bool, backward: bool
) -> _Cost:
    """The cost of a ring in which K and V travel, and in the backward pass their gradients.

    Args:
      ranks: ranks of the ring.
      rows: tokens of one rank.
      heads: query heads of one rank.
      message: bytes of K and V that a rank sends in a step.
      pulled: whether copy engines pull the messages; else NCCL sends them.
    """
    p = s.problem
    attention = _ring_calls(s, ranks, rows, heads, backward=backward)
    o_bytes = p.batch * rows * heads * p.v_head_dim * 2
    links = s.links
    move = links.copy(message) if pulled else links.shift(message, ranks)
    other = ranks * s.calls.software.kernels * KERNEL
    if s.calls.software.packs and ranks > 1:
        other += s.calls.copied(message, 2 if pulled else 1)
    other += BARRIER if pulled and ranks > 1 else 0.0
    exposed, hidden = 0.0, tuple[tuple[int, float, float], ...]()
    if pulled or p.sm_margin:
        hidden = ((ranks - 1, attention / ranks, move),)
    else:
        exposed = (ranks - 1) * move
    if not backward:
        return _Cost(attention, other + s.calls.merge(ranks, o_bytes), exposed, hidden)
    gradient = 2 * message  # bytes of f32 gradients in each step; they travel over NCCL
    q_bytes = p.batch * rows * heads * p.head_dim * 2
    # dQ is zeroed; then each call reads its part of the sum and the new part, and writes the sum.
    per_call = (3 * 2 * q_bytes + 4 * gradient) / s.calls.gpu.memory_bandwidth + 4 * KERNEL
    other += ranks * per_call
    if ranks > 1:
        exposed += ranks * links.shift(gradient, ranks)
    return _Cost(attention, other, exposed, hidden)


def _flat_ring(s: _Setting, pulled: bool, backward: bool) -> _Cost:
    p = s.problem
    return _ring(s, p.ranks, p.own, p.heads, p.kv_bytes, pulled, backward)


def _gather(s: _Setting, backward: bool) -> _Cost:
    """The cost of an all-gather of K and V; an all-to-all returns their gradients to be summed."""
    p, ranks = s.problem, s.problem.ranks
    half = -(-p.own // 2)
    attend = s.calls.attention
    if p.is_causal:
        # On rank 0 the first half of the rows sees itself, the second half sees itself and all
        # positions before it. All ranks have equally many visible scores.
        attention = attend(half, half, p.heads, is_square=True, backward=backward) * 2 + attend(
            half, p.length - half, p.heads, backward=backward
        )
    else:
        attention = attend(p.own, p.length, p.heads, backward=backward)
    is_near = s.links.nodes(ranks) == 1 and s.calls.software.packs
    if ranks == 1:
        move = 0.0
    elif is_near:
        move = BARRIER + (ranks - 1) * GATHERED_COPIES * s.links.copy(p.kv_bytes / GATHERED_COPIES)
    else:
        move = s.links.gather(p.kv_bytes, ranks)
    calls = 3 if p.is_causal else 1
    other = calls * s.calls.software.kernels * KERNEL
    if s.calls.software.packs and ranks > 1:
        other += s.calls.copied(p.kv_bytes, 3 if is_near else 0) + GATHERED_COPIES * KERNEL
    if not backward:
        other += s.calls.merge(2 if p.is_causal else 1, p.o_bytes / 2)
        return _Cost(attention, other, move)
    gradients = p.kv_gradient_bytes * ranks
    swap = s.links.swap(gradients, ranks)
    # Passes over the gradients: zeros, sums of two calls, reorder by ranks, pack, sum over ranks.
    passes = 5 * 2 * gradients + 4 * 2 * p.q_bytes
    return _Cost(
        attention, other + passes / s.calls.gpu.memory_bandwidth + 12 * KERNEL, move + swap, ()
    )


def _swapped_bytes(p: Problem, ranks: int) -> tuple[int, int]:
    """Bytes of a rank's (q, K and V; O and LSE) in an exchange of heads among `ranks` ranks."""
    kv_heads = math.lcm(p.kv_heads, ranks)
    kv_width = p.head_dim + p.v_head_dim
    tokens = p.batch * p.own * 2
    own = tokens * (p.heads * p.head_dim + kv_heads * kv_width)
    return own, tokens * p.heads * (p.v_head_dim + LSE_ELEMENTS)


def _exchange(s: _Setting, ranks: int, links: Links) -> tuple[float, float]:
    """Seconds of (transfers, copies) of both exchanges of heads, the same in both passes."""
    if ranks == 1:
        return 0.0, 0.0
    operands, results = _swapped_bytes(s.problem, ranks)
    before, after = s.calls.software.passes
    copies = s.calls.copied(operands, before) + s.calls.copied(results, after)
    return links.swap(operands, ranks) + links.swap(results, ranks), copies


def _ulysses(s: _Setting, backward: bool) -> _Cost:
    p = s.problem
    heads = p.heads / p.ranks
    attention = s.calls.attention(
        p.length, p.length, heads, is_square=p.is_causal, backward=backward
    )
    exposed, other = _exchange(s, p.ranks, s.links)
    return _Cost(attention, other + 4 * KERNEL, exposed)


def _two_level(s: _Setting, backward: bool) -> _Cost:
    """The cost of exchanges of heads within nodes, and of rings of K and V between nodes."""
    p, inner, message = s.problem, s.inner, s.inner_message
    outer = p.ranks // inner
    across = _Setting(s.calls, Links(s.links.inter, s.links.inter, 1))
    ring = _ring(across, outer, p.own * inner, p.heads / inner, message, False, backward)
    exposed, other = _exchange(s, inner, s.links.of_node)
    return _Cost(ring.attention, ring.other + other, ring.exposed + exposed, ring.hidden)


def _ring_memory(s: _Setting, rows: int, heads: float, message: float, steps: int) -> float:
    """Bytes of a ring beyond the operands: buffers, a message, symmetric memory, partial O."""
    p = s.problem
    slots = min(steps, MAX_SLOTS) if steps > 1 else 0
    partials = slots * p.batch * rows * heads * (p.v_head_dim + 1) * 4
    found = 5 * message + partials if steps > 1 else 0.0
    if p.is_training:
        found += p.batch * rows * heads * p.head_dim * 4 + 4 * 2 * message
    return found


def _operands(p: Problem) -> float:
    """Bytes of q, K, V, O and LSE; in training also of the gradients."""
    lse = p.batch * p.own * p.heads * 4
    return (p.q_bytes + p.kv_bytes + p.o_bytes) * len(p.passes) + lse


def _ring_volume(s: _Setting, pulled: bool) -> tuple[float, float, str]:
    """(bytes sent, bytes of memory beyond the operands, refusal or ""), as all of `SCHEMES`."""
    p = s.problem
    sent = (p.ranks - 1) * p.kv_bytes
    if p.is_training:
        sent = 2 * sent + (p.ranks * p.kv_gradient_bytes if p.ranks > 1 else 0)
    refusal = ""
    if pulled and s.links.nodes(p.ranks) > 1:
        refusal = f"copy engines reach the {s.links.ranks_per_node} ranks of a node, not {p.ranks}"
    return sent, _ring_memory(s, p.own, p.heads, p.kv_bytes, p.ranks), refusal


def _gather_volume(s: _Setting) -> tuple[float, float, str]:
    p = s.problem
    sent, memory = (p.ranks - 1) * p.kv_bytes, p.ranks * p.kv_bytes + 2 * p.kv_bytes
    if p.is_training:
        sent = 2 * sent + (p.ranks - 1) * p.kv_gradient_bytes
        memory += 4 * p.ranks * p.kv_gradient_bytes + 2 * p.q_bytes
    return sent, memory, ""


def _ulysses_volume(s: _Setting) -> tuple[float, float, str]:
    p = s.problem
    operands, results = _swapped_bytes(p, p.ranks)
    sent = (operands + results) * (p.ranks - 1) / p.ranks * len(p.passes)
    memory = (3 * operands + 3 * results) * len(p.passes)
    refusal = ""
    if p.heads % p.ranks:
        refusal = f"{p.ranks} ranks do not divide {p.heads} heads"
    return sent, memory, refusal


def _two_level_volume(s: _Setting) -> tuple[float, float, str]:
    p, inner, message = s.problem, s.inner, s.inner_message
    outer = -(-p.ranks // inner)
    operands, results = _swapped_bytes(p, inner)
    passes = len(p.passes)
    sent = (operands + results) * (inner - 1) / inner * passes + (outer - 1) * message * passes
    if p.is_training and outer > 1:
        sent += outer * 2 * message
    memory = (3 * operands + 3 * results) * passes
    memory += _ring_memory(s, p.own * inner, p.heads / inner, message, outer)
    refusal = ""
    if outer == 1:
        refusal = f"{p.ranks} rank{'s' * (p.ranks > 1)} of one node: it would be ulysses"
    elif p.ranks % inner:
        refusal = f"{p.ranks} ranks are no whole number of nodes of {inner}"
    elif inner == 1:
        refusal = "a node has one rank: it would be ring-nccl"
    elif p.heads % inner:
        refusal = f"the {inner} ranks of a node do not divide {p.heads} heads"
    return sent, memory, refusal


Costs = Callable[[_Setting, bool], _Cost]
SCHEMES: dict[str, tuple[Costs, Callable[[_Setting], tuple[float, float, str]]]] = {
    "ring-pull": (lambda s, back: _flat_ring(s, True, back), lambda s: _ring_volume(s, True)),
    "ring-nccl": (lambda s, back: _flat_ring(s, False, back), lambda s: _ring_volume(s, False)),
    "gather": (_gather, _gather_volume),
    "ulysses": (_ulysses, _ulysses_volume),
    "2d": (_two_level, _two_level_volume),
}


def predict(
    scheme: str, problem: Problem, gpu: Gpu, links: Links, software: Software = OURS
) -> Prediction:
    """The cost of a scheme, also of an impossible one."""
    setting = _Setting(Calls(gpu, problem, software), links)
    cost, volume = SCHEMES[scheme]
    sent, memory, refusal = volume(setting)
    memory += _operands(problem)
    if not refusal and memory > gpu.memory_bytes:
        refusal = f"{memory / 1e9:.0f} GB are more than the {gpu.memory_bytes / 1e9:.0f} of the GPU"
    attention = exposed = other = 0.0
    for backward in problem.passes:
        found = cost(setting, backward)
        seconds = setting.calls.throttled(found.attention, backward)
        slower = seconds / found.attention if found.attention else 1.0
        attention += seconds
        exposed += found.exposed + sum(
            count * max(0.0, move - beside * slower) for count, beside, move in found.hidden
        )
        other += found.other
    return Prediction(
        scheme=scheme,
        seconds=attention + exposed + other,
        attention=attention,
        exposed=exposed,
        other=other,
        bytes_sent=sent,
        memory_bytes=memory,
        limit=limit(problem, gpu, links, software),
        refusal=refusal,
    )


def limit(problem: Problem, gpu: Gpu, links: Links, software: Software = OURS) -> float:
    """Seconds of attention on ideal ranks: its FLOPs, divided by ranks, at the burst rate."""
    calls = Calls(gpu, problem, software)
    found = 0.0
    for backward in problem.passes:
        seconds = problem.flops(backward) / problem.ranks / calls.speed(backward)
        found += calls.throttled(seconds, backward)
    return found
