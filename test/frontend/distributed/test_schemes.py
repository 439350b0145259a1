"""Schemes on several processes with gloo and the emulator: values of the whole problem in float64."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from attn_mlir.validation.distributed.cases import CASES, SCHEMES
from attn_mlir.validation.distributed.launch import run

SLICE = {
    2: ("gather-causal-gradients", "ulysses-alibi", "decode-a2a"),
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
