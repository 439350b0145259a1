"""Softmax groups that take turns: what one knows of the other, by the ring proof."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import attn_mlir as am
from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn import build_module
from attn_mlir.errors import VerifyError
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
from attn_mlir.passes.verify_rings import prove
from attn_mlir.schedules.attention.tensor_memory import softmax


def built(configure: str) -> Any:
    """The module of one attention kernel of two query tiles."""
    module = build_module(make_context(), am.mha(heads=1, head_dim=64), name="k")
    run_pipeline(module, f"attn-configure{{{configure}}},convert-attn-to-ws")
    return module


def longest(module: Any) -> Callable[[str, int, str, str], list[Any]]:
    """What finds the events of the run with the most of them: by ring, instance, kind and role."""
    (kernel,) = ir.get_ops_of_type(module, ws.KernelOp)
    trace = max(prove(kernel), key=lambda trace: sum(map(len, trace.events.values())))
    rings = {key[0].owner.label: key[0] for key in trace.events}

    def found(ring: str, instance: int, kind: str, who: str) -> list[Any]:
        events = trace.events[rings[ring], instance]
        return [event for event in events if (event.kind, event.who) == (kind, who)]

    return found


@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_group_reads_scores_when_the_other_one_has_handed_p_over(is_ordered: bool) -> None:
    module = built("ordered-softmax=true" if is_ordered else "")
    found = longest(module)
    commits = [found("p", instance, "commit", f"softmax[{instance}]") for instance in (0, 1)]
    waits = [found("s", instance, "wait", f"softmax[{instance}]") for instance in (0, 1)]
    assert len(waits[0]) == len(waits[1]) > 4
    behind = zip(waits[1], commits[0], strict=True)
    assert all(wait.knows(commit) for wait, commit in behind) == is_ordered
    following = zip(waits[0][1:], commits[1], strict=False)
    assert all(wait.knows(commit) for wait, commit in following) == is_ordered


def test_a_group_that_waits_in_front_of_its_first_turn_stops_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = softmax._await_other_group  # pyright: ignore[reportPrivateUsage]

    def in_front(storage: Any, instance: Any, *, group: int) -> None:
        if group == 1:
            kept(storage, instance, group=0)
            kept(storage, instance, group=1)

    monkeypatch.setattr(softmax, "_await_other_group", in_front)
    (kernel,) = ir.get_ops_of_type(module := built("ordered-softmax=true"), ws.KernelOp)
    with pytest.raises(VerifyError, match=r"needs a full slot of ring order\[0\]"):
        prove(kernel)
    del module


def test_a_group_that_does_not_wait_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = softmax._await_other_group  # pyright: ignore[reportPrivateUsage]

    def once(storage: Any, instance: Any, *, group: int) -> None:
        if group == 1:
            kept(storage, instance, group=group)

    monkeypatch.setattr(softmax, "_await_other_group", once)
    (kernel,) = ir.get_ops_of_type(module := built("ordered-softmax=true"), ws.KernelOp)
    with pytest.raises(VerifyError, match=r"ring order\[0\]"):
        prove(kernel)
    del module
