"""Every argument of PyTorch's names does something, says nothing, or is refused."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import attn_mlir as am  # noqa: E402
from attn_mlir import torch as doors  # noqa: E402
from attn_mlir.validation.effects import (  # noqa: E402
    Change,
    Subject,
    effect_tests,
    only_planned,
    parameters,
    refused,
)
from attn_mlir.validation.numerics.torch_operands import changed, drawn  # noqa: E402

HEADS, KV, D = 4, 2, 64


def half(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * 0.5


def distinct(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q != k


BHSD: dict[str, Any] = {
    "query": drawn(2, HEADS, 6, D),
    "key": drawn(2, HEADS, 70, D),
    "value": drawn(2, HEADS, 70, D, seed=1),
}
GROUPED = {"key": drawn(2, KV, 70, D), "value": drawn(2, KV, 70, D, seed=1), "enable_gqa": True}
DOORS = {
    "scaled_dot_product_attention": Subject(
        doors.scaled_dot_product_attention,
        lambda: BHSD,
        {
            **changed(BHSD, "query", "key", "value"),
            "attn_mask": Change(torch.ones(6, 70, dtype=torch.bool)),
            "is_causal": Change(True),
            "scale": Change(0.5),
            **refused(dropout_p=0.5),
            "enable_gqa": Change(False, GROUPED, refused=True),
        },
    ),
    "flex_attention": Subject(
        doors.flex_attention,
        lambda: BHSD,
        {
            **changed(BHSD, "query", "key", "value"),
            "score_mod": Change(half),
            "mask_mod": Change(distinct),
            "block_mask": Change(am.block_mask(distinct, 2, HEADS, 6, 70)),
            "scale": Change(0.5),
            "return_lse": Change(True),
            "return_aux": Change(doors.flex.AuxRequest(lse=True)),
            "enable_gqa": Change(False, GROUPED, refused=True),
            "kernel_options": Change({"no such option": 1}, refused=True),
        },
    ),
}
SUBJECTS = {"torch": DOORS}

test_an_argument_does_something, test_what_is_nothing_is_refused_by_its_name = effect_tests(
    SUBJECTS
)


def test_every_argument_has_its_row() -> None:
    for name, subject in DOORS.items():
        assert sorted(parameters(subject.function)) == sorted(subject.changes), name


def test_groups_of_heads_need_no_batch() -> None:
    """Operands of rank 3 are heads of one sequence where these are grouped, else a batch of single heads."""
    q, k = drawn(HEADS, 6, D), drawn(KV, 70, D)
    with only_planned() as plans:
        doors.scaled_dot_product_attention(q, k, k, enable_gqa=True)
        doors.scaled_dot_product_attention(q, drawn(HEADS, 70, D), drawn(HEADS, 70, D))
    found = [(plan.like.shape, plan.steps[0].request.group) for plan in plans]  # pyright: ignore
    assert found == [((1, 6, HEADS, D), HEADS // KV), ((HEADS, 6, 1, D), 1)]
