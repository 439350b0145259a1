"""Attention of DTensor on two processes with gloo and the emulator, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
tensor: Any = pytest.importorskip("torch.distributed.tensor")

from attn_mlir import torch as door  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
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


def test_without_rules_it_is_refused() -> None:
    """A DTensor is no plain tensor until `register_sharding` was called."""
    name = (tensor.DTensor.__module__, tensor.DTensor.__name__)
    assert name not in torch_tensors.FAKES
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        q = tensor.distribute_tensor(torch.zeros(1, 2, 8, 64).bfloat16(), mesh)
        with pytest.raises(SpecError, match="register_sharding"):
            door.scaled_dot_product_attention(q, q, q)
    finally:
        torch.distributed.destroy_process_group()
