"""Attention of DTensor on two processes with gloo and the emulator, and what is refused."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
tensor: Any = pytest.importorskip("torch.distributed.tensor")

from attn_mlir import torch as door  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.pytorch import operators, sharding  # noqa: E402
from attn_mlir.runtime.call import torch_tensors  # noqa: E402
from attn_mlir.validation.distributed.launch import run  # noqa: E402
from attn_mlir.validation.distributed.placements import CASES  # noqa: E402

ERROR = 0.03  # of bf16 O and gradients of normal values


def check(*names: str) -> None:
    """O lies where the case says, and it and the gradients are those of the whole."""
    for rank, of_rank in enumerate(run("placements.check", 2, *names)):
        assert list(of_rank) == list(names), f"rank {rank}: {of_rank}"
        for name, found in of_rank.items():
            assert found["right"] and max(found["errors"]) < ERROR, (name, rank, found)


@pytest.mark.slow
def test_heads_of_a_group_stay_together() -> None:
    check("heads", "torn-groups")


@pytest.mark.long
@pytest.mark.parametrize("name", [x for x in CASES if x not in ("heads", "torn-groups")])
def test_placements(name: str) -> None:
    check(name)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Starts a group in which other ranks are silent; forgets afterwards that DTensor was admitted."""
    fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    monkeypatch.setattr(torch_tensors, "FAKES", set(torch_tensors.FAKES))
    torch_tensors._is_fake_class.cache_clear()
    sharding.register.cache_clear()

    def start(*sizes: int) -> Any:
        store, count = fake.FakeStore(), math.prod(sizes)
        torch.distributed.init_process_group("fake", store=store, rank=0, world_size=count)
        return torch.distributed.device_mesh.init_device_mesh("cpu", sizes)

    yield start
    torch.distributed.destroy_process_group()
    torch_tensors._is_fake_class.cache_clear()
    sharding.register.cache_clear()


def test_without_rules_it_is_refused(ranks: Callable[..., Any]) -> None:
    """A DTensor is no plain tensor until `register_sharding` was called."""
    q = tensor.distribute_tensor(torch.zeros(1, 2, 8, 64).bfloat16(), ranks(1))
    with pytest.raises(SpecError, match="register_sharding"):
        door.scaled_dot_product_attention(q, q, q)


SHAPES = {"q": (2, 16, 4, 64), "lse": (2, 4, 16), "dlse": (2, 4, 16), "sinks": (4,)}
OPERANDS = ("q", "k", "v", "o", "lse", "do", "dlse", "sinks")
LIES: dict[str, tuple[int, str, str]] = {
    "batch": (2, "q0 k0 v0 o0 lse0 do0 dlse0 sinks-", "dq0 dk0 dv0 dsinks+"),
    "head": (2, "q2 k2 v2 o2 lse1 do2 dlse1 sinks0", "dq2 dk2 dv2 dsinks0"),
    "head, one of keys": (1, "q2 k- v- o2 lse1 do2 dlse1 sinks0", "dq2 dk+ dv+ dsinks0"),
    "q": (2, "q1 k- v- o1 lse2 do1 dlse2 sinks-", "dq1 dk+ dv+ dsinks+"),
}
"""By kind of shards: heads of keys, the axis of each operand, and of each gradient; - is whole, + is
the sum over ranks."""


@pytest.mark.parametrize("case", LIES)
def test_gradients_of_what_ranks_share_are_their_sums(case: str) -> None:
    kv_heads, operands, gradients = LIES[case]
    shapes = {**SHAPES, "kv": (2, 16, kv_heads, 64)}
    of = {"k": "kv", "v": "kv", "o": "q", "do": "q"}
    given = {x: SimpleNamespace(shape=shapes[of.get(x, x)]) for x in OPERANDS}
    rule = sharding.RULES["attention_backward_call"]
    made = rule._placed(case.partition(",")[0], {"wanted": None}, given)

    def spelled(name: str, place: Any) -> str:
        at = "-" if place.is_replicate() else "+" if place.is_partial() else str(place.dim)
        return name + at

    results, count = list(rule.results), len(rule.results)
    found = [spelled(x, y) for x, y in zip(results, made[:count], strict=True)]
    assert [x for x in found if x.startswith(("dq", "dk", "dv", "dsinks"))] == gradients.split()
    assert [*map(spelled, OPERANDS, made[count:])] == operands.split()


@pytest.mark.parametrize(
    "options, kinds",
    [
        ({}, ["batch", "head", "q"]),
        ({"head_offset": 4}, ["batch", "q"]),
        ({"mask": "causal"}, ["batch", "head"]),
        ({"cache": "paged"}, []),
    ],
)
def test_what_counts_heads_or_positions_is_not_split_along_them(
    options: dict[str, Any], kinds: list[str]
) -> None:
    given = {name: SimpleNamespace(shape=SHAPES["q"]) for name in "qkv"}
    named = {"mask": "full", "modifier": "", **options}
    assert sharding.RULES["attention_call"]._kinds(named, given) == kinds


R, B, H, S = (tensor.Replicate(), *map(tensor.Shard, (0, 1, 2)))
GRID: dict[str, tuple[tuple[int, int], tuple[Any, Any], tuple[Any, Any], bool]] = {
    "batch and heads": ((8, 4), (B, H), (B, H), False),
    "heads twice": ((16, 8), (H, H), (H, H), False),
    "heads twice, which would tear groups": ((24, 12), (H, H), (H, S), False),
    "heads of a rank without a group": ((8, 2), (R, H), (R, R), False),
    "heads alone, one of keys": ((8, 1), (R, H), (R, H), False),
    "queries and heads": ((8, 4), (S, H), (S, H), False),
    "queries that have positions": ((8, 4), (S, H), (R, H), True),
}  # sizes of heads, placements of q, and those that O has, and whether the mask is causal


@pytest.mark.parametrize("case", GRID)
def test_two_axes_of_ranks(
    case: str, ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank has all keys of its heads, wherever the operands lie."""
    (heads, kv_heads), placed, wanted, is_causal = GRID[case]
    seen: list[tuple[int, int]] = []

    def attend(q: Any, k: Any, v: Any, **_: Any) -> Any:
        seen.append((q.shape[2], k.shape[2]))
        return torch.zeros_like(q)

    monkeypatch.setattr(operators, "attention", attend)
    mesh = ranks(2, 4)
    door.register_sharding()
    whole = [torch.zeros(2, n, 16, 64).bfloat16() for n in (heads, kv_heads, kv_heads)]
    of_keys = [R if x == S or (x == H and kv_heads == 1) else x for x in placed]
    q, k, v = (
        tensor.distribute_tensor(x, mesh, p)
        for x, p in zip(whole, (placed, of_keys, of_keys), strict=True)
    )
    o = door.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)
    ((local, local_kv),) = seen
    assert local * kv_heads == heads * local_kv or kv_heads == 1
    assert o.placements == wanted and o.shape == whole[0].shape
