"""The attention kernel on the emulator: a spread of the sweep's table."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from attn_mlir.validation.numerics.mha_cases import (
    DTYPES,
    HEAD_DIMS,
    LENGTHS,
    MASKS,
    RATIOS,
    SCHEDULES,
    Case,
    Schedule,
    case_named,
)
from attn_mlir.validation.numerics.mha_check import check

RUNS = [
    (case_named(name), Schedule.named(how))
    for name, how in (
        ("d64-f16-full-g4-1x1", "adv1"),
        ("d128-bf16-causal-g1-1x1", "fair"),
        ("d128-bf16-causal-g1-1x513", "adv2"),
        ("d64-f16-full-g4-1x513", "fair"),
        ("d64-bf16-full-g1-127x127", "adv3"),
        ("d128-f16-full-g4-127x127", "adv4"),
        ("d128-bf16-causal-g1-128x128", "fair"),
        ("d64-f16-full-g1-128x128", "adv5"),
        ("d128-f16-causal-g4-129x257", "adv1"),
        ("d64-bf16-full-g1-129x257", "adv2"),
        ("d128-bf16-full-g1-256x256", "adv3"),
        ("d64-f16-causal-g1-256x256", "fair"),
        ("d128-bf16-causal-g1-300x77", "adv4"),
        ("d64-bf16-full-g4-300x77", "adv5"),
        ("d64-f16-causal-g1-77x300", "fair"),
        ("d128-bf16-full-g4-77x300", "adv1"),
        ("d128-f16-causal-g1-640x640", "adv2"),
    )
]


def test_the_spread_has_every_length_and_schedule_and_every_pair_of_static_properties():
    cases = [case for case, _ in RUNS]
    assert {(case.sq, case.sk) for case in cases} == set(LENGTHS)
    assert {schedule for _, schedule in RUNS} == set(SCHEDULES)
    kernels = [(case.head_dim, case.dtype, case.mask, case.ratio) for case in cases]
    for a, b in combinations((0, 1, 2, 3), 2):
        values = (HEAD_DIMS, DTYPES, MASKS, RATIOS)
        assert {(row[a], row[b]) for row in kernels} == set(product(values[a], values[b]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "schedule"), RUNS, ids=[f"{case.name}-{schedule.name}" for case, schedule in RUNS]
)
@pytest.mark.long(
    "d64-f16-full-g4-1x513-fair",
    "d128-f16-full-g4-127x127-adv4",
    "d128-f16-causal-g1-640x640-adv2",
    "d128-bf16-full-g1-256x256-adv3",
    "d64-bf16-full-g4-300x77-adv5",
    "d64-f16-full-g1-128x128-adv5",
    "d64-bf16-full-g1-129x257-adv2",
    "d64-f16-causal-g1-77x300-fair",
)
def test_every_element_is_right(case: Case, schedule: Schedule):
    outcome = check(case, schedule)
    assert outcome.verdict.reason == ""
    assert outcome.warp_instructions > 0
