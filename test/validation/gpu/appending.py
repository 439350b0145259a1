"""Checks of new tokens in caches on a GPU, judged as on the emulator."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

import attn_mlir as am
from attn_mlir.api.plan import Plan
from attn_mlir.validation.gpu.check import Machine, check, module

LAYERS, STEPS = 3, 5


def _cases(target: str) -> None:
    """Asks for the kernels of every case of the numerics."""
    from attn_mlir.validation.numerics.appends import CASES

    planner: Callable[..., Plan] = getattr(am.append_kv, "planner")  # noqa: B009
    for case in CASES.values():
        cache, call = case.call()
        for step in planner(cache, **call, device=am.EmulatorDevice(target=target)).steps:
            am.compile(step.request, target=target)


@check(asks=_cases)
def new_tokens_in_caches(machine: Machine) -> None:
    """Every row where it belongs, every other bit of the caches as it was."""
    module("ml_dtypes")
    from attn_mlir.validation.numerics.appends import CASES, check

    for name, case in CASES.items():
        cache, call = case.call()
        before = copy.deepcopy(cache)
        am.append_kv(cache, **call, device="cuda")
        try:
            check(cache, before, call, case.rotary is not None)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def _torch_cache(torch: Any, device: str) -> tuple[am.PagedKV, Any]:
    """One layer of a pool of several on a GPU, or its like on the host; and the pool."""
    pool = torch.full((9, LAYERS, 2, 16, 2, 128), float("nan"), dtype=torch.bfloat16, device=device)
    table = torch.randperm(9)[:8].reshape(2, 4).to(device, torch.int32)
    used = torch.zeros(2, dtype=torch.int32, device=device)
    return am.PagedKV(pool[:, 1], page_table=table, seqused=used, counts_new=False), pool


def _of_torch(target: str) -> None:
    """Asks for the kernel of `tokens_in_a_graph`."""
    planner: Callable[..., Plan] = getattr(am.append_kv, "planner")  # noqa: B009
    import ml_dtypes

    pool = np.zeros((9, 2, 16, 2, 128), ml_dtypes.bfloat16)
    table, used = np.arange(8, dtype=np.int32).reshape(2, 4), np.zeros(2, np.int32)
    cache = am.PagedKV(pool, page_table=table, seqused=used, counts_new=False)
    new = np.zeros((2, 1, 2, 128), ml_dtypes.bfloat16)
    for step in planner(cache, new, new, device=am.EmulatorDevice(target=target)).steps:
        am.compile(step.request, target=target)


@check(asks=_of_torch)
def tokens_in_a_graph(machine: Machine) -> None:
    """A captured launch writes where the lengths on the GPU say at each replay, and into one layer."""
    torch = module("torch")
    cache, pool = _torch_cache(torch, "cuda")
    k, v = (torch.zeros(2, 1, 2, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    am.append_kv(cache, k, v)  # loads the kernel
    torch.cuda.synchronize()
    pool.fill_(float("nan"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        am.append_kv(cache, k, v)
    torch.cuda.synchronize()
    assert torch.isnan(pool).all()
    tokens: list[Any] = []
    for _ in range(STEPS):
        k.normal_()
        v.normal_()
        graph.replay()
        cache.seqused.add_(13)
        tokens.append((k.clone(), v.clone()))
    torch.cuda.synchronize()
    for step, sides in enumerate(tokens):
        for b in range(2):
            page, offset = divmod(13 * step, 16)
            number = int(cache.page_table[b, page])
            for side, new in enumerate(sides):
                assert torch.equal(pool[number, 1, side, offset], new[b, 0]), (step, b, side)
    written = ~torch.isnan(pool[..., 0, 0])
    assert int(written.sum()) == 4 * STEPS and not written[:, ::2].any()
