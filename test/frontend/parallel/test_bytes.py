"""The planner's bytes are those that `attn_mlir.distributed` sends, counted where it sends them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import attn_mlir as am  # noqa: E402
from attn_mlir.distributed import ulysses  # noqa: E402
from attn_mlir.distributed.gather import Gather  # noqa: E402
from attn_mlir.distributed.layouts import runs_of, tokens_of  # noqa: E402
from attn_mlir.distributed.operands import Shards  # noqa: E402
from attn_mlir.distributed.packing import numbers_of  # noqa: E402
from attn_mlir.distributed.problem import Problem as Asked  # noqa: E402
from attn_mlir.distributed.ring import Ring  # noqa: E402
from attn_mlir.distributed.transport import Transport, Wait  # noqa: E402
from attn_mlir.parallel import plan_parallel  # noqa: E402

HEADS, DIM, V_DIM = 8, 32, 16


class Members:
    """One rank of a group that is alone."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size, self.group = rank, size, None
        self.counting = Counting(self)
        self.transports = {"cpu": self.counting}

    @contextlib.contextmanager
    def watched(self, call: str) -> Iterator[None]:
        yield


class Counting(Transport):
    """Counts what a rank sends; what it receives is zeros."""

    def __init__(self, members: Any):
        super().__init__(members)
        self.sent = 0

    def shift(self, send: Any, receive: Any) -> Wait:
        self.sent += send.numel() * send.element_size()
        receive.zero_()
        return lambda: None

    def gather(self, pairs: Sequence[tuple[Any, Any]]) -> Wait:
        for whole, own in pairs:
            self.sent += own.numel() * own.element_size() * (self.members.size - 1)
            whole.zero_()
        return lambda: None

    def swap(self, send: Any) -> Any:
        size = self.members.size
        self.sent += send.numel() * send.element_size() * (size - 1) // size
        return torch.zeros_like(send)


def operands(shards: Shards, rank: int, kv_heads: int) -> list[Any]:
    tokens = tokens_of(shards.runs[rank])
    sizes = ((HEADS, DIM), (kv_heads, DIM), (kv_heads, V_DIM))
    return [torch.zeros(1, tokens, *x, dtype=torch.bfloat16) for x in sizes]


def attend(operands: Any, sinks: Any, head: int) -> tuple[Any, Any]:
    """Numbers that depend on all operands, in the place of attention."""
    q, k, v = operands
    o = q[..., :V_DIM] + 0 * (k.sum() + v.sum())
    return o, torch.zeros(1, q.shape[2], q.shape[1])


def sent(scheme: str, length: int, ranks: int, kv_heads: int, training: bool) -> int:
    """Bytes that rank 0 sends in a call of the library without its attention."""
    members: Any = Members(0, ranks)
    runs = tuple(runs_of(length, ranks, rank, "zigzag") for rank in range(ranks))
    shards, asked = Shards(length, runs, max(map(tokens_of, runs))), Asked(am.causal())
    q, k, v = operands(shards, 0, kv_heads)
    if scheme == "ulysses":
        given = tuple(x.requires_grad_() for x in (q, k, v))
        o, _ = ulysses.exchange_heads(members, shards, given, None, attend)
        if training:
            o.sum().backward()
        return members.counting.sent
    made = (Gather if scheme == "gather" else Ring)(scheme, members, asked, shards)
    list(made.keys(k, v))
    if training:
        made.gradients(k, v, lambda plan, k, v: (k.float(), v.float()))
    return members.counting.sent


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kv_heads", [2, 8])
@pytest.mark.parametrize(("length", "ranks"), [(64, 1), (64, 2), (64, 4), (37, 4)])
@pytest.mark.parametrize("scheme", ["ring-nccl", "gather", "ulysses"])
def test_bytes(scheme: str, length: int, ranks: int, kv_heads: int, training: bool) -> None:
    plan = plan_parallel(
        length, ranks=ranks, heads=HEADS, kv_heads=kv_heads, head_dim=DIM, v_head_dim=V_DIM,
        training=training,
    )  # fmt: skip
    assert plan[scheme].bytes_sent == sent(scheme, length, ranks, kv_heads, training)
    if scheme == "ring-nccl":
        assert plan["ring-pull"].bytes_sent == plan[scheme].bytes_sent


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_bytes_of_two_levels(kv_heads: int, training: bool) -> None:
    """An exchange among 4 ranks of a node, and a ring of 3 nodes that carries a quarter of the heads."""
    length, nodes, inner = 96, 3, 4
    plan = plan_parallel(
        length, ranks=nodes * inner, heads=HEADS, kv_heads=kv_heads, head_dim=DIM,
        v_head_dim=V_DIM, ranks_per_node=inner, training=training,
    )  # fmt: skip
    exchanged = sent("ulysses", length // nodes, inner, kv_heads, training)
    of_rank = math.lcm(kv_heads, inner) // inner  # KV heads after the exchange
    ring = sent("ring-nccl", length, nodes, of_rank, training)
    assert plan["2d"].bytes_sent == exchanged + ring


def test_lse_has_two_columns() -> None:
    from attn_mlir.distributed.packing import COLUMNS
    from attn_mlir.parallel.schemes import LSE_ELEMENTS

    assert LSE_ELEMENTS == COLUMNS
    assert numbers_of(torch.zeros(1, LSE_ELEMENTS, dtype=torch.bfloat16)).shape == (1, 1)


def test_partial_results_are_kept_as_often() -> None:
    from attn_mlir.distributed.merging import MAX_SLOTS
    from attn_mlir.parallel import calls

    assert calls.MAX_SLOTS == MAX_SLOTS
