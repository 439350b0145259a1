"""Ranks that fail: the others end with an error that names them, and before they communicate."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from attn_mlir.validation.distributed.launch import run

TIMEOUT = 40.0  # of the group, in seconds


def faulty(name: str, size: int, *arguments: str, timeout: float = TIMEOUT) -> list[dict[str, Any]]:
    return run(f"faults.{name}", size, *arguments, timeout=timeout)


DIFFERENT_HEADS = (
    "heads of q and k must be the same on all ranks: rank 0 has (4, 2), rank 1 has (2, 2)"
)


@pytest.mark.long
def test_other_arguments_are_refused_by_all_ranks_and_the_group_lives_on() -> None:
    first, second = faulty("differ", 2, "heads")
    want = "SpecError", DIFFERENT_HEADS
    assert (first["error"], first["text"]) == (second["error"], second["text"]) == want
    assert first["after"] == second["after"] == ""


@pytest.mark.long
@pytest.mark.parametrize(
    "what, text",
    [
        ("tokens", "the ranks have [12, 11] tokens, which are no shards of 23"),
        ("dtype", "dtype must be the same on all ranks: rank 0 has torch.bfloat16, rank 1 has"),
        ("mask", "mask must be the same on all ranks: rank 0 has causal, rank 1 has window:3,0"),
        ("function", "call must be the same on all ranks: rank 0 has ring_attention"),
    ],
)
def test_each_argument_that_ranks_share_is_compared(what: str, text: str) -> None:
    for found in faulty("differ", 2, what):
        assert found["error"] == "SpecError" and text in found["text"]
        assert found["after"] == ""


@pytest.mark.long
@pytest.mark.parametrize(
    "what, error", [("refused", "SpecError"), ("sinks", "SpecError"), ("keyword", "TypeError")]
)
def test_a_rank_that_refuses_tells_the_others(what: str, error: str) -> None:
    first, second = faulty("differ", 2, what)
    assert second["error"] == error and first["error"] == "RankError"
    assert first["text"] == f"rank 1 refused the call: {error}: {second['text']}"
    assert first["after"] == second["after"] == ""


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_other_arguments_are_refused_and_a_killed_rank_is_named(size: int) -> None:
    first, second, *others = faulty("killed", size, "ring")
    assert second == {"ended": -9}
    for found in (first, *others):
        before = found["before"]
        assert (before["error"], before["text"]) == ("SpecError", DIFFERENT_HEADS)
        assert before["after"] == ""
        assert found["error"] == "RankError" and "rank 1 ended" in found["text"]
        assert found["seconds"] < TIMEOUT


@pytest.mark.slow
def test_a_call_without_a_kernel_is_refused_before_anything_is_sent() -> None:
    ranks = faulty("without_kernel", 2)
    for rank, found in enumerate(ranks):
        for scheme in ("ring", "gather", "ulysses"):
            refused = found[scheme]
            assert refused["error"] == "SpecError" and "328" in refused["text"], refused
        assert found["planted"]["error"] == ("RankError", "TargetError")[rank]
        assert "planted" in found["planted"]["text"]
        assert found["function"]["error"] == "SpecError"
        assert "score_mod and mask_mod must be the same" in found["function"]["text"]
        assert found["after"]["error"] == "", found["after"]


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["ring", "gather", "ulysses"])
@pytest.mark.parametrize("kind", ["AttnError", "RuntimeError"])
def test_a_rank_that_raises_in_a_call_is_named(scheme: str, kind: str) -> None:
    first, second = faulty("raises", 2, scheme, kind)
    assert (second["error"], second["text"]) == (kind, "planted")
    assert first["error"] in ("", "RankError") and first["again"] == "RankError"
    if first["error"]:
        assert "rank 1 raised" in first["text"] and f"{kind}: planted" in first["text"]


@pytest.mark.long
@pytest.mark.parametrize(
    "what, text",
    [
        ("refused", "q must be bfloat16 or float16"),
        ("tokens", "the ranks have [6, 6, 6, 5] tokens"),
        ("dtype", "dtype must be the same on all ranks"),
    ],
)
def test_all_ranks_of_a_mesh_refuse_what_one_of_them_does(what: str, text: str) -> None:
    for found in faulty("in_mesh", 4, what):
        assert found["error"] in ("SpecError", "RankError") and text in found["text"], found
        assert found["after"]["error"] == "", found["after"]


@pytest.mark.long
def test_a_rank_that_does_not_call_is_named_after_the_timeout() -> None:
    first, _ = faulty("absent", 2, timeout=3.0)
    assert first["error"] == "RankError" and "rank 1 did not make call 1" in first["text"]


@pytest.mark.long
def test_groups_that_are_none_are_refused_and_nested_meshes_work() -> None:
    for rank, found in enumerate(faulty("groups", 4)):
        assert found["tokens"] == 12
        assert "2 dimensions" in found["texts"][0] and "'everybody'" in found["texts"][1]
        assert rank < 2 or "with this rank in it" in found["texts"][2]
