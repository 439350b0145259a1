"""The attention kernel on the emulator: a spread of the sweep's table, and what the table has no column for."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
from mha_cases import (
    DTYPES,
    HEAD_DIMS,
    LENGTHS,
    MASKS,
    RATIOS,
    SCHEDULES,
    Case,
    Inputs,
    Schedule,
    case_named,
)
from mha_check import check, kernel, kernel_of, launch, mask_named, verdict_of

from attn_mlir.reference.compare import compare
from attn_mlir.reference.mha import attention_f64, attention_yardstick

pytest.importorskip("attn_mlir.lowering.pipeline")

FAIR = SCHEDULES[0]
RUNS = [
    (case_named(name), Schedule.named(how))
    for name, how in (
        ("d64-f16-full-g4-1x1", "adv1"),
        ("d128-bf16-causal-g1-1x1", "fair"),
        ("d128-bf16-causal-g1-1x513", "adv2"),
        ("d64-f16-full-g4-1x513", "fair"),
        ("d64-bf16-causal-g1-127x127", "adv3"),
        ("d128-f16-full-g4-127x127", "adv4"),
        ("d128-bf16-causal-g4-128x128", "fair"),
        ("d64-f16-full-g1-128x128", "adv5"),
        ("d128-f16-causal-g4-129x257", "adv1"),
        ("d64-bf16-full-g1-129x257", "adv2"),
        ("d128-bf16-full-g1-256x256", "adv3"),
        ("d64-f16-causal-g4-256x256", "fair"),
        ("d128-bf16-causal-g1-300x77", "adv4"),
        ("d64-bf16-full-g4-300x77", "adv5"),
        ("d64-f16-causal-g1-77x300", "fair"),
        ("d128-bf16-full-g4-77x300", "adv1"),
        ("d128-f16-causal-g1-640x640", "adv2"),
    )
]


def judged(case: Case, data: Inputs, o: Any, lse: Any, scale: float | None = None) -> str:
    """What is wrong with these outputs for these operands; empty when nothing is."""
    operands: Any = (data.q, data.k, data.v)
    options: Any = {"mask": mask_named(case.mask), "scale": scale}
    truth = attention_f64(*operands, **options)
    return verdict_of(compare(o, lse, truth, attention_yardstick(*operands, **options))).reason


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
def test_every_element_is_right(case: Case, schedule: Schedule):
    outcome = check(case, schedule)
    assert outcome.verdict.reason == ""
    assert outcome.warp_instructions > 0


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS)
def test_the_order_of_asynchronous_work_does_not_change_a_bit(mask: str):
    """Every row's additions have one order: results that differ between schedules mean a race."""
    case = Case(128, "bf16", mask, 129, 257, 1)
    data = case.inputs()
    results = [launch(kernel_of(case), data, how)[:2] for how in (SCHEDULES[0], *SCHEDULES[3:5])]
    for (o, lse), (other_o, other_lse) in pairwise(results):
        assert o.tobytes() == other_o.tobytes()
        assert lse.tobytes() == other_lse.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.01, 1.0])
def test_scale_is_an_argument(scale: float):
    case = Case(64, "bf16", "causal", 127, 127, 1)
    data = case.inputs()
    o, lse, _ = launch(kernel_of(case), data, FAIR, scale=scale)
    assert judged(case, data, o, lse, scale) == ""


@pytest.mark.slow
def test_scores_far_beyond_the_range_of_the_exponential():
    """Scores near 1000: only the maximum's subtraction keeps the exponentials finite."""
    case = Case(128, "bf16", "full", 129, 257, 1)
    data = case.inputs()
    large = replace(data, q=(data.q.astype(np.float32) * 30).astype(data.q.dtype))
    o, lse, _ = launch(kernel_of(case), large, FAIR)
    assert judged(case, large, o, lse) == ""


@pytest.mark.slow
def test_equal_scores_give_the_mean_of_the_values():
    case = Case(64, "f16", "full", 1, 513, 1)
    data = case.inputs()
    flat = replace(data, q=np.zeros_like(data.q))
    o, lse, _ = launch(kernel_of(case), flat, FAIR)
    assert np.allclose(lse, np.log(case.sk), atol=1e-5)
    assert judged(case, flat, o, lse) == ""


@pytest.mark.slow
def test_operands_packed_in_one_tensor():
    """q, k and v as views of one [batch, sequence, 3, heads, head_dim] tensor: strides are run-time values."""
    case = Case(64, "bf16", "causal", 127, 127, 1)
    data = case.inputs()
    packed = np.stack([data.q, data.k, data.v], axis=2)
    views = Inputs(packed[:, :, 0], packed[:, :, 1], packed[:, :, 2])
    assert views.q.strides[1] == 3 * data.q.strides[1]
    o, lse, _ = launch(kernel_of(case), views, FAIR)
    plain = launch(kernel_of(case), data, FAIR)
    assert o.tobytes() == plain[0].tobytes() and lse.tobytes() == plain[1].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS)
def test_no_keys_give_zero_and_minus_infinity(mask: str):
    case = Case(128, "bf16", mask, 130, 0, 1)
    data = case.inputs()
    o, lse, _ = launch(kernel_of(case), data, FAIR)
    assert not np.any(o.astype(np.float32)) and not np.any(np.isnan(o.astype(np.float32)))
    assert np.all(lse == -np.inf)


@pytest.mark.parametrize(("batch", "sq"), [(0, 5), (2, 0)])
def test_no_queries_launch_nothing(batch: int, sq: int):
    run = kernel(64, "bf16", "causal", 2, 2)
    data = Case(64, "bf16", "causal", max(sq, 1), 7, 1).inputs()
    empty = Inputs(data.q[:batch, :sq], data.k[:batch], data.v[:batch])
    o, lse, instructions = launch(run, empty, FAIR)
    assert (o.size, lse.size, instructions) == (0, 0, 0)


@pytest.mark.slow
def test_one_kernel_for_all_batches_and_lengths():
    """Nothing of a former call stays: a long call, a short one, and the long one again."""
    run = kernel(64, "bf16", "causal", 2, 2)
    long = Case(64, "bf16", "causal", 129, 257, 1)
    short = Case(64, "bf16", "causal", 1, 1, 1)
    for case in (long, short, long):
        data = case.inputs()
        o, lse, _ = launch(run, data, FAIR)
        assert judged(case, data, o, lse) == ""
