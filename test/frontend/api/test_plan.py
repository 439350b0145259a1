"""A call is a plan of launches: what it says, what it takes, and that running it is the call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.api import plan as plans
from attn_mlir.api.plan import PlanView
from attn_mlir.api.planners import only_planned
from attn_mlir.errors import SpecError

BF16 = ml_dtypes.bfloat16
Q, K = np.zeros((2, 5, 4, 64), BF16), np.zeros((2, 300, 2, 64), BF16)


def test_one_launch() -> None:
    plan = am.plan(Q, K, K, return_lse=True)
    assert [step.request.operation for step in plan.steps] == ["mha"]
    assert [(x.name, x.dtype, x.shape, x.byte_count) for x in plan.results] == [
        ("o", "bf16", (2, 5, 4, 64), 5120),
        ("lse", "f32", (2, 4, 5), 160),
    ]
    assert plan.workspace_bytes == 0


def test_parts_have_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a plan compiles nothing")

    monkeypatch.setattr(plans, "compile", fail)
    plan = am.plan(Q, K, K, num_splits=3, sinks=np.zeros(4, np.float32))
    assert [step.request.operation for step in plan.steps] == ["mha", "combine"]
    assert [(x.name, x.dtype, x.shape) for x in plan.workspace] == [
        ("partial_o", "f32", (6, 5, 4, 64)),
        ("partial_lse", "f32", (2, 6, 4, 5)),
    ]
    assert plan.workspace_bytes == 6 * 5 * 4 * 64 * 4 + 2 * 6 * 4 * 5 * 4
    told = str(plan).splitlines()
    assert told[0] == f"2 kernels for sm_100a, {plan.workspace_bytes} bytes of workspace"
    assert told[1].endswith("(q, k, v, o=partial_o, lse=partial_lse)")
    assert told[2].endswith("(parts=partial_o, lses=partial_lse, sinks, o)")
    assert "workspace  partial_lse  f32  [2, 6, 4, 5]" in str(plan)


def test_rows_of_a_ragged_batch_are_combined_as_one_sequence() -> None:
    q, k = np.zeros((7, 4, 64), BF16), np.zeros((300, 2, 64), BF16)
    offsets = {"cu_seqlens_q": np.array([0, 3, 7], np.int32), "cu_seqlens_k": np.array([0, 100, 300], np.int32)}  # fmt: skip
    plan = am.plan(q, k, k, num_splits=2, **offsets)
    assert [x.shape for x in plan.workspace] == [(14, 4, 64), (2, 4, 14)]
    arguments = plan.steps[1].arguments
    assert arguments["parts"] == PlanView("partial_o", (2, 1, 7, 4, 64))
    assert arguments["lses"] == PlanView("partial_lse", (2, 2, 1, 4, 7), (56, 7, 0, 14, 1))
    assert arguments["o"] == PlanView("o", (1, 7, 4, 64))


def test_a_plan_has_the_arguments_of_the_call() -> None:
    call, plan = inspect.signature(am.attention), inspect.signature(am.plan)
    assert call.parameters == plan.parameters and "num_splits" in plan.parameters
    assert plan.return_annotation is am.Plan
    with pytest.raises(SpecError, match="^num_splits must be an integer"):
        am.plan(Q, K, K, num_splits=-1)


def test_running_it_is_the_call_any_number_of_times() -> None:
    random = np.random.default_rng(0)
    q = random.standard_normal((1, 5, 2, 64)).astype(BF16)
    k, v = (random.standard_normal((1, 40, 1, 64)).astype(BF16) for _ in "kv")
    options: dict[str, Any] = {"num_splits": 2, "device": "emulator", "return_lse": True}
    plan = am.plan(q, k, v, **options)
    first, again, called = plan.run(), plan.run(), am.attention(q, k, v, **options)
    assert first[0] is not again[0]
    for a, b, c in zip(first, again, called, strict=True):
        assert (a == b).all() and (a == c).all()
    assert am.reference.check_attention(q, k, v, *called, mask=am.full()).ok


def test_no_sequences_in_compressed_rows() -> None:
    """Nothing says how long the longest is."""
    pages = np.zeros((3, 16, 2, 64), BF16)
    none = np.zeros(0, np.int32)
    cache = am.PagedKV(pages, pages, indptr=np.zeros(1, np.int32), indices=none, last_page_len=none)
    plan = am.plan(np.zeros((0, 1, 4, 64), BF16), cache, num_splits=0)
    assert plan.results[0].shape == (0, 1, 4, 64) and len(plan.steps) == 1


def _listed_rows(memory: Any) -> plans.Plan:
    rows, listed = np.zeros((9, 1, 512), BF16), memory.view(np.int32).reshape(-1)[:8].reshape(2, 4)
    lengths = memory.view(np.int32).reshape(-1)[64:66]
    q, indices = np.zeros((2, 16, 512), BF16), np.zeros_like(listed)
    planner = only_planned(am.sparse_mla)
    return planner(q, rows, indices, scale=1.0, topk_length=lengths, out=memory)


def _own_sinks(memory: Any) -> plans.Plan:
    return am.plan(Q, K, K, sinks=memory.reshape(-1)[:4], out=memory, out_dtype="f32")


def _own_bias(memory: Any) -> plans.Plan:
    captured = memory.reshape(-1)[:4]
    return am.plan(Q, K, K, score_mod=lambda s, b, h, q, k: s + captured[h], out=memory)


@pytest.mark.parametrize(
    ("plan", "shape", "name"),
    [
        (_listed_rows, (2, 16, 512), "topk_length"),
        (_own_sinks, Q.shape, "sinks"),
        (_own_bias, Q.shape, "captured"),
    ],
)
def test_results_in_memory_of_an_argument_are_refused_before_anything_is_compiled(
    plan: Callable[[Any], plans.Plan],
    shape: tuple[int, ...],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "compile", lambda *_, **__: pytest.fail("compiled"))
    made = plan(np.zeros(shape, np.float32))
    with pytest.raises(
        SpecError, match=rf"^out is an output, but it shares memory with {name}: pass"
    ):
        made.run()
