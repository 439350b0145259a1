"""What attention kernels have got wrong elsewhere: each test is a mistake that was made once."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import attn_mlir as am
from attn_mlir.reference import check_attention

HEADS = 2


def operands(sq: int, sk: int, dtype: Any = ml_dtypes.bfloat16) -> list[NDArray[Any]]:
    """q, k and v of one sequence, head size 64."""
    random = np.random.default_rng(7)
    shapes = ((1, length, HEADS, 64) for length in (sq, sk, sk))
    return [random.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]


def judge(q: Any, k: Any, v: Any, **options: Any) -> None:
    """Every element of O and LSE against the formula."""
    o, lse = am.attention(q, k, v, return_lse=True, device="emulator", **options)
    verdict = check_attention(q, k, v, o, lse, **options)
    assert verdict.ok, str(verdict)


def test_visible_scores_far_below_zero() -> None:
    """A hidden score is below every visible one, also where those are near -25,600."""
    _, _, v = operands(200, 200)
    q = np.full(v.shape, 20.0, v.dtype)
    options: Any = {"mask": am.causal(), "scale": 1.0}
    o, lse = am.attention(q, -q, v, return_lse=True, device="emulator", **options)
    verdict = check_attention(q, -q, v, o, lse, **options)
    assert verdict.wrong_count == 0
    assert verdict.lse_error < 2 * np.spacing(np.float32(25_600))


def test_a_modifier_does_not_bring_hidden_scores_back() -> None:
    """The mask comes last, whatever the modifier makes of a hidden score."""
    q, k, v = operands(200, 200)

    def raise_hidden(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return am.trace.where(j > i, 1e4, score)

    plain = am.attention(q, k, v, mask=am.causal(), device="emulator")
    raised = am.attention(q, k, v, mask=am.causal(), score_mod=raise_hidden, device="emulator")
    difference = np.abs(raised.astype(np.float32) - plain.astype(np.float32))
    assert difference.max() < 2.0**-6  # the scale is multiplied elsewhere: last bits may differ


def test_rows_past_the_end_reach_no_result() -> None:
    """K and V inside a larger allocation full of NaN: a weight of 0 would not hide a NaN of V."""
    q, k, v = operands(130, 200)
    larger = [np.full((1, 512, HEADS, 64), np.nan, k.dtype) for _ in range(2)]
    for whole, part in zip(larger, (k, v), strict=True):
        whole[:, :200] = part
    o = am.attention(q, *(whole[:, :200] for whole in larger), device="emulator")
    assert o.tobytes() == am.attention(q, k, v, device="emulator").tobytes()


@pytest.mark.parametrize(
    ("mask", "sq", "sk"),
    [
        (am.sliding_window(200), 40, 500),  # the first tile is cut on the left
        (am.sliding_window(1023), 130, 330),  # row 0 at 200: one tile for all, none cut on the left
        (am.sliding_window(0), 200, 200),  # a window of one key is not "no window"
        (am.causal(), 300, 77),  # the first rows see nothing; no column past the end is seen
        (am.chunked(96) & am.causal(), 150, 330),  # chunks that cross tiles
    ],
    ids=str,
)
@pytest.mark.long("window:200,0-40-500", "causal&chunked:96-150-330")
def test_edges_of_masks(mask: am.Mask, sq: int, sk: int) -> None:
    judge(*operands(sq, sk), mask=mask)


def test_a_sink_is_not_scaled() -> None:
    """The softmax scale is for scores; a sink's logit is taken as it is, and stays out of LSE."""
    q, k, v = operands(140, 140)
    sinks = np.array([1.5, -2.0], np.float32)
    judge(q, k, v, mask=am.causal(), sinks=sinks, scale=0.5)


def test_scores_in_the_range_of_half_precision_only_after_scaling() -> None:
    """Products beyond 65,504 before the scale: they are float32 until P."""
    q, k, v = operands(130, 140, np.float16)
    large_q, large_k = ((x * 60).astype(x.dtype) for x in (q, k))
    judge(large_q, large_k, v, mask=am.causal(), scale=0.002)


def test_a_row_does_not_see_its_neighbours() -> None:
    """Whether O is rescaled is each row's own decision: other rows of its warp do not change a bit."""
    q, k, v = operands(128, 400)
    other = q.copy()
    other[:, ::2] *= 40  # their maxima move by more than the threshold
    before, after = (am.attention(x, k, v, return_lse=True, device="emulator") for x in (q, other))
    for one, two in zip(before, after, strict=True):
        rows = one.shape.index(128)
        one, two = (np.moveaxis(x, rows, 0) for x in (one, two))
        assert one[1::2].tobytes() == two[1::2].tobytes()
        assert one[::2].tobytes() != two[::2].tobytes()


def test_a_second_query_tile_without_rows() -> None:
    """Tensor memory is freed when the products of both are over, whoever is late."""
    q, k, v = operands(90, 200)
    for seed in (1, 5):
        late = am.EmulatorDevice(schedule="adversarial", seed=seed, check="all")
        o, lse = am.attention(q, k, v, query_tiles=2, return_lse=True, device=late)
        verdict = check_attention(q, k, v, o, lse)
        assert verdict.ok, str(verdict)


@pytest.mark.parametrize("sink", [300.0, -np.inf])
def test_a_sink_far_from_all_scores(sink: float) -> None:
    """e^300 is no float32: attention goes nowhere, and LSE does not know; e^-inf changes nothing."""
    judge(*operands(3, 140), sinks=np.full(HEADS, sink, np.float32))


def test_no_lengths_where_offsets_belong() -> None:
    """`cu_seqlens` are prefix sums of batch + 1 entries that begin anywhere, not lengths."""
    q, k, v = (x[0] for x in operands(37, 37))
    lengths = np.array([5, 0, 32], np.int32)
    with pytest.raises(am.errors.SpecError, match="^cu_seqlens_q must not decrease"):
        am.attention(q, k, v, cu_seqlens_q=lengths, cu_seqlens_k=lengths, device="emulator")
