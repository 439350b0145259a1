"""The attention kernel on the emulator: what the sweep's table has no column for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from attn_mlir.validation.numerics.mha_cases import MASKS, SCHEDULES, Case, Inputs
from attn_mlir.validation.numerics.mha_check import judged, kernel, kernel_of, launch

FAIR = SCHEDULES[0]


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
