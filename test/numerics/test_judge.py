"""The judge itself: what must pass passes, and each kind of wrong output is caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attn_mlir.masks import causal
from attn_mlir.reference import attention_f64, compare
from attn_mlir.validation.numerics.mha_cases import (
    DTYPES,
    HEAD_DIMS,
    LENGTHS,
    MASKS,
    RATIOS,
    SCHEDULES,
    Case,
    Schedule,
    all_cases,
    case_named,
)
from attn_mlir.validation.numerics.mha_check import POISON_BITS, expected, poisoned, verdict_of

CASE = Case(64, "bf16", "causal", 300, 77, 4)
PLAIN = Case(128, "f16", "full", 129, 257, 1)


def outputs(case: Case) -> tuple[Any, Any]:
    """What a faultless kernel writes: the truth, rounded once."""
    data, truth, _ = expected(case)
    return truth.o.astype(data.q.dtype), truth.lse.astype(np.float32)


def judged(case: Case, o: Any, lse: Any):
    _, truth, yardstick = expected(case)
    return verdict_of(compare(o, lse, truth, yardstick))


@pytest.mark.parametrize("case", [CASE, PLAIN], ids=lambda case: case.name)
def test_rounded_truth_and_yardstick_pass(case: Case):
    _, _, yardstick = expected(case)
    for o, lse in (outputs(case), (yardstick.o, yardstick.lse)):
        verdict = judged(case, o, lse)
        assert verdict.reason == ""
        assert verdict.o_ratio <= 1 and verdict.lse_ratio <= 1


def test_nothing_written_fails():
    o, lse = outputs(PLAIN)
    assert judged(PLAIN, poisoned(o.shape, o.dtype), lse).reason
    assert judged(PLAIN, o, poisoned(lse.shape, lse.dtype)).reason


def test_one_unwritten_element_fails():
    o, lse = outputs(PLAIN)
    o[0, -1, -1, -1] = np.nan
    assert judged(PLAIN, o, lse).reason


def test_one_key_too_few_fails():
    """A mask that is off by one column, the error that a tile's edge invites."""
    case = Case(128, "bf16", "causal", 300, 300, 1)
    data, _, _ = expected(case)
    q: Any = np.roll(data.q, -1, axis=1)  # row i holds query i + 1 and lacks that one's last key
    shifted = attention_f64(q, data.k, data.v, mask=causal()).o
    o, lse = outputs(case)
    o[:, 1:] = shifted[:, :-1].astype(o.dtype)
    assert judged(case, *outputs(case)).reason == ""
    assert judged(case, o, lse).reason


def test_swapped_heads_fail():
    o, lse = outputs(PLAIN)
    assert judged(PLAIN, o[:, :, ::-1], lse).reason
    assert judged(PLAIN, o, lse[:, ::-1]).reason


@pytest.mark.parametrize(("offset", "passes"), [(0.9e-3, True), (1.1e-3, False)])
def test_lse_tolerance(offset: float, passes: bool):
    o, lse = outputs(PLAIN)
    lse[0, 0, 0] += np.float32(offset)
    assert (judged(PLAIN, o, lse).reason == "") is passes


def test_rows_without_keys_must_be_zero_and_minus_infinity():
    o, lse = outputs(CASE)
    hidden = CASE.sq - CASE.sk
    assert np.all(lse[:, :, :hidden] == -np.inf) and not np.any(o[:, :hidden])
    slightly = o.copy()
    slightly[0, 0, 0, 0] = 1e-3
    assert judged(CASE, slightly, lse).reason
    for value in (np.inf, -1e30, np.nan):
        changed = lse.copy()
        changed[0, 0, 0] = value
        assert judged(CASE, o, changed).reason


def test_poison_sets_every_bit():
    for dtype in (np.dtype(np.float32), np.dtype(np.float16), expected(CASE)[0].q.dtype):
        array = poisoned((3, 5), dtype)
        assert array.shape == (3, 5) and array.dtype == dtype
        assert np.all(array.view(np.uint16) == POISON_BITS)
        assert np.all(np.isnan(array.astype(np.float64)))


def test_table_is_the_whole_product():
    cases = all_cases()
    assert len(set(cases)) == len(cases) == 2 * 2 * 2 * 9 * 2
    assert {case.head_dim for case in cases} == set(HEAD_DIMS) == {64, 128}
    assert {case.dtype for case in cases} == set(DTYPES)
    assert {case.mask for case in cases} == set(MASKS)
    assert {(case.sq, case.sk) for case in cases} == set(LENGTHS)
    assert {case.heads // case.kv_heads for case in cases} == set(RATIOS)
    assert [schedule.kind for schedule in SCHEDULES].count("adversarial") == 5


def test_names_lead_back():
    for case in all_cases():
        assert case_named(case.name) == case
    for schedule in SCHEDULES:
        assert Schedule.named(schedule.name) == schedule
    with pytest.raises(ValueError, match="advN"):
        Schedule.named("random")


def test_inputs_make_the_running_maximum_rise_in_one_head_and_fall_in_another():
    """Without this the rescale of accumulated output would hardly run."""
    data = Case(128, "bf16", "full", 256, 256, 1).inputs()
    norms = np.linalg.norm(data.k.astype(np.float64), axis=3)  # [batch, key, head]
    late, early = norms[:, -64:].mean(axis=(0, 1)), norms[:, :64].mean(axis=(0, 1))
    growth = late / early
    assert growth.max() > 2 and growth.min() < 0.5
