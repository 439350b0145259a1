"""Gradients of keys and values on the emulator: queries stream past keys that stand still."""

from __future__ import annotations

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.errors import TargetError
from attn_mlir.masks import Mask
from attn_mlir.validation.numerics.gradients import KvGradients, draw, judge, kernel, run

RAGGED = Lengths(ragged_q=True, ragged_k=True)


@pytest.mark.parametrize(
    ("sq", "sk", "mask"),
    [
        (130, 200, am.full()),
        (200, 130, am.causal()),  # rows 0 to 69 see nothing
        (70, 200, am.causal()),
        (200, 230, am.sliding_window(60, 30)),
        (230, 200, am.sliding_window(40)),
        (150, 150, am.chunked(48)),
        (70, 300, am.prefix_lm(100)),
        (130, 130, am.sliding_window(20, 20) & am.chunked(64)),
        (130, 130, am.causal() | am.prefix_lm(40)),
        (130, 130, ~am.sliding_window(20, 20)),
        (130, 200, ~am.causal()),
    ],
    ids=str,
)
def test_masks(sq: int, sk: int, mask: Mask) -> None:
    request = KvGradients(2, 1, 64, 64, mask)
    judge(request, [draw(request, sq, sk, 0.125, seed) for seed in range(2)], 0.125)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "v_head_dim", "dtype"),
    [
        (6, 2, 64, 64, "f16"),
        (1, 1, 128, 128, "bf16"),
        (2, 2, 128, 64, "bf16"),
        (4, 1, 40, 128, "bf16"),
        (2, 1, 16, 8, "f16"),
    ],
)
def test_heads(heads: int, kv_heads: int, head_dim: int, v_head_dim: int, dtype: str) -> None:
    """Groups of heads, and head sizes that are no whole lines."""
    request = KvGradients(heads, kv_heads, head_dim, v_head_dim, am.causal(), dtype)
    scale = head_dim**-0.5
    judge(request, [draw(request, 100, 140, scale, 3)], scale)


@pytest.mark.parametrize(("sq", "sk"), [(1, 1), (1, 129), (129, 1), (64, 64), (65, 128), (63, 127)])
def test_sizes(sq: int, sk: int) -> None:
    request = KvGradients(2, 2, 64, 64, am.causal())
    judge(request, [draw(request, sq, sk, 0.125, sq)], 0.125, seed=sk)


@pytest.mark.parametrize("mask", [am.causal(), am.sliding_window(30, 10)], ids=str)
def test_sequences_of_unequal_lengths(mask: Mask) -> None:
    """Also with no queries, whose keys have gradients of 0, and with no keys."""
    request = KvGradients(4, 2, 64, 64, mask, lengths=RAGGED)
    sizes = [(0, 70), (70, 130), (65, 0), (1, 1), (200, 67), (5, 300)]
    given = [draw(request, sq, sk, 0.125, n) for n, (sq, sk) in enumerate(sizes)]
    judge(request, given, 0.125)


def test_rows_that_do_not_count() -> None:
    """What lies behind the end of a sequence is NaN, also in LSE and delta, and has no gradient."""
    lengths = Lengths(used_q=True, used_k=True)
    request = KvGradients(2, 1, 64, 64, am.causal(), lengths=lengths)
    sizes = [(100, 70), (40, 130), (0, 65), (130, 0)]
    judge(request, [draw(request, *size, 0.125, n) for n, size in enumerate(sizes)], 0.125)


def test_what_no_query_sees_is_zero() -> None:
    """Of keys in a work tile that visits no queries, too: those of the first 128."""
    request = KvGradients(1, 1, 64, 64, am.sliding_window(30))
    ((dk, dv),) = run(request, [draw(request, 60, 300, 0.125, 1)], 0.125)
    seen = np.asarray(request.mask.visible(np.arange(60)[:, None], np.arange(300), 60, 300)).any(0)
    assert not seen[:210].any() and seen[210:].all()
    assert not dk[~seen].any() and not dv[~seen].any()
    assert dv[seen].any()


def test_a_large_common_part_of_scores() -> None:
    """Weights are 2^(S - LSE), where both are about 40."""
    request = KvGradients(2, 1, 64, 64, am.causal())
    judge(request, [draw(request, 130, 130, 0.125, 5, offset=40.0)], 0.125)


def test_tiles_that_are_hidden_are_not_visited(product_counts: list[int]) -> None:
    """Of two work tiles of 128 keys under a causal mask the second visits half of the queries."""
    for mask in (am.full(), am.causal(), am.sliding_window(0, 0)):
        request = KvGradients(2, 1, 64, 64, mask)
        judge(request, [draw(request, 256, 256, 0.125, 1)], 0.125)
    full, causal, diagonal = product_counts
    assert full > 0 and causal * 8 == full * 6 and diagonal * 8 == full * 4


def test_the_result_does_not_depend_on_timing() -> None:
    request = KvGradients(4, 1, 64, 64, am.causal())
    given = [draw(request, 150, 150, 0.125, 1)]
    first, *others = (run(request, given, 0.125, seed)[0] for seed in range(3))
    for other in others:
        for one, two in zip(first, other, strict=True):
            assert one.tobytes() == two.tobytes()


def test_where_there_is_no_kernel() -> None:
    with pytest.raises(TargetError, match="kv-gradients needs"):
        kernel(KvGradients(1, 1, 64, 64), "sm_100a")
    with pytest.raises(am.errors.VerifyError, match="head_dim must be a multiple of 8 up to 128"):
        kernel(KvGradients(1, 1, 256, 64))
