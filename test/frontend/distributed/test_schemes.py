"""Schemes on several processes with gloo and the emulator: values of the whole problem in float64."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from attn_mlir.distributed import hybrid  # noqa: E402
from attn_mlir.distributed.hybrid import joined, renumbered  # noqa: E402
from attn_mlir.distributed.layouts import indices, runs_of  # noqa: E402
from attn_mlir.validation.distributed.cases import CASES, SCHEMES  # noqa: E402
from attn_mlir.validation.distributed.launch import run  # noqa: E402

SLICE = {
    2: ("gather-causal-gradients", "ulysses-alibi", "decode-a2a", "pass_q-cache", "lengths-gather"),
    3: ("ring-odd-gradients",),  # two ranks do not tell which way the ring turns
}


def check(size: int, *names: str) -> None:
    """Each error is within its bound on each rank."""
    found: list[dict[str, Any]] = run("cases.check", size, *names)
    for rank, of_rank in enumerate(found):
        assert list(of_rank) == list(names), f"rank {rank}: {of_rank}"
        for name, errors in of_rank.items():
            wrong = {x: y for x, y in errors.items() if x != "seconds" and not y <= 1}
            assert not wrong, f"{name}, rank {rank} of {size}"


@pytest.mark.slow
@pytest.mark.parametrize("size", SLICE)
def test_a_slice_of_the_cases(size: int) -> None:
    check(size, *SLICE[size])


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("case", CASES)
def test_every_scheme_with_every_case(case: str, size: int) -> None:
    schemes = [x for x in SCHEMES if x != "ulysses" or size != 3]  # 3 does not divide 4 heads
    check(size, *(f"{scheme}-{case}-gradients" for scheme in schemes))


@pytest.mark.long
@pytest.mark.parametrize("scheme", SCHEMES)
def test_two_runs_give_the_same_bits(scheme: str) -> None:
    check(2, f"bits-{scheme}")


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_results_for_cached_parts_are_combined(size: int) -> None:
    check(size, "decode-a2a", "decode-ag_rs", "unshard-causal", "unshard-odd-contiguous")


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_lengths_change_where_a_rank_has_as_many_tokens_as_before(size: int) -> None:
    names = "ring", "ring-told", "gather-told", "ulysses", "ulysses_ring", "ulysses_ring-told"
    check(size, *(f"lengths-{name}" for name in (*names, "pass_q", "unshard")))


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3])
def test_queries_travel_to_caches(size: int) -> None:
    check(size, "pass_q-tensors", "pass_q-cache")


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_heads_are_exchanged_in_nodes_and_keys_between_them(size: int) -> None:
    cases = "causal", "contiguous", "odd", "alibi", "sinks", "documents", "empty-rank", "window"
    check(size, *(f"ulysses_ring-{case}-gradients" for case in cases))


def members(size: int, rank: int, counts: Any) -> Any:
    """A group whose other ranks say these counts."""
    return SimpleNamespace(
        **dict.fromkeys(("checked", "agreeing", "watched"), lambda *_: nullcontext()),
        size=size, rank=rank, agree=lambda *_, **__: counts, prepare=lambda kernels: kernels(),
    )  # fmt: skip


def test_a_ring_is_of_its_node_and_of_a_part_of_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank of node 1 of 2, of 2 ranks each, which have 2, 2, 1 and no tokens."""
    nodes, ranks = members(2, 1, ((2, 2), (1, 0))), members(2, 0, (1, 0))
    q = torch.zeros(1, 1, 4, 64).bfloat16()
    made: list[Any] = []
    prepared: list[Any] = []

    def exchange(_: Any, shards: Any, operands: Any, sinks: Any, attend: Any) -> Any:
        assert shards.runs == ((range(1),), (range(5, 5),))
        return attend(operands, sinks, 2)

    def compute(q: Any, _k: Any, _v: Any, _sinks: Any, scheme: Any) -> Any:
        made.append(scheme)
        return q, q

    def prepare(_: Any, *operands: Any, gradients: bool) -> None:
        prepared.append(([[*x.shape] for x in operands], gradients))

    monkeypatch.setattr(hybrid, "members_of", {0: nodes, 1: ranks}.get)
    monkeypatch.setattr(hybrid, "exchange_heads", exchange)
    monkeypatch.setattr(hybrid, "_prepare", lambda ring, node, kernels: kernels())
    monkeypatch.setattr(hybrid.Ring, "prepare", prepare)
    monkeypatch.setattr(hybrid, "Sharded", SimpleNamespace(apply=compute))
    mesh = SimpleNamespace(ndim=2, get_group=lambda dim: dim)
    options: dict[str, Any] = {"layout": "contiguous", "device": "emulator"}
    options["score_mod"] = lambda score, b, h, q, k: score + h
    options["sinks"] = torch.zeros(4, requires_grad=True)
    hybrid.ulysses_ring_attention(q, q, q, mesh, **options)
    assert prepared == [([[1, 1, 2, 64]] * 3 + [[2]], True)]
    (ring,) = made
    assert ring.members is nodes and ring.shards.runs == ((range(4),), (range(4, 5),))
    assert ring.problem.score_mod(0, 0, 1, 0, 0) == 3  # the heads from 2 on


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("length", [0, 5, 61, 64])
def test_the_tokens_of_a_node_are_those_of_its_ranks(length: int, layout: str) -> None:
    """In order, and each has the number that its position has among them."""
    nodes, size = 3, 2
    runs = [runs_of(length, nodes * size, rank, layout) for rank in range(nodes * size)]
    for node in range(nodes):
        own = runs[node * size : (node + 1) * size]
        positions = indices(joined(own)).tolist()
        assert positions == sorted(p for x in own for p in indices(x).tolist())
        for of_rank, numbers in zip(own, renumbered(own), strict=True):
            assert [positions[i] for i in indices(numbers).tolist()] == indices(of_rank).tolist()
