"""Gradients on the emulator: queries stream past keys that stand still, and keys past queries."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.errors import VerifyError
from attn_mlir.masks import Mask
from attn_mlir.validation.numerics.gradients import (
    TARGETS,
    draw,
    gradients,
    judge,
    kernel,
    run,
)

RAGGED = Lengths(ragged_q=True, ragged_k=True)
Of = Literal["kv", "q"]
each = pytest.mark.parametrize("of", ["kv", "q"])
everywhere = pytest.mark.parametrize("target", TARGETS)


@everywhere
@each
@pytest.mark.parametrize(
    ("sq", "sk", "mask"),
    [
        (130, 200, am.full()),
        (130, 70, am.causal()),  # rows 0 to 59 see nothing
        (130, 160, am.sliding_window(60, 30)),
        (150, 150, am.chunked(48)),
        (130, 130, am.causal() | am.prefix_lm(40)),
        (130, 130, ~am.sliding_window(20, 20)),
    ],
    ids=str,
)
@pytest.mark.long(
    but=("*-causal-kv-sm_90a", "*-causal-q-sm_100a", "*-window*-kv-sm_100a", "*-window*-q-sm_90a")
)
def test_masks(sq: int, sk: int, mask: Mask, of: Of, target: str) -> None:
    request = gradients(2, 1, 64, 64, mask, of=of)
    judge(request, [draw(request, sq, sk, 0.125, 1)], 0.125, target=target)


@everywhere
@pytest.mark.parametrize(
    ("sq", "sk", "mask"),
    [
        (70, 200, am.causal()),
        (230, 200, am.sliding_window(40)),
        (70, 300, am.prefix_lm(100)),
        (130, 130, am.sliding_window(20, 20) & am.chunked(64)),
        (130, 200, ~am.causal()),
    ],
    ids=str,
)
@pytest.mark.long(but=("70-200-causal-sm_100a", "*~causal-sm_90a"))
def test_further_masks_of_keys(sq: int, sk: int, mask: Mask, target: str) -> None:
    request = gradients(2, 1, 64, 64, mask)
    judge(request, [draw(request, sq, sk, 0.125, 1)], 0.125, target=target)


@everywhere
@each
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "v_head_dim", "dtype"),
    [
        (6, 2, 64, 64, "f16"),
        (1, 1, 128, 128, "bf16"),
        (2, 1, 40, 128, "bf16"),
        (2, 1, 16, 8, "f16"),
    ],
)
@pytest.mark.long(
    but=(
        "6-2-*-q-sm_90a",
        "1-1-*-kv-sm_100a",
        "1-1-*-q-sm_90a",
        "2-1-40-*-kv-sm_90a",
        "2-1-16-*-kv-sm_100a",
        "2-1-16-*-q-sm_90a",
    )
)
def test_heads(
    heads: int, kv_heads: int, head_dim: int, v_head_dim: int, dtype: str, of: Of, target: str
) -> None:
    """Groups of heads, and head sizes that are no whole lines."""
    request = gradients(heads, kv_heads, head_dim, v_head_dim, am.causal(), dtype, of=of)
    scale = head_dim**-0.5
    judge(request, [draw(request, 100, 140, scale, 3)], scale, target=target)


@everywhere
@each
@pytest.mark.parametrize(("sq", "sk"), [(1, 1), (1, 129), (129, 1), (65, 128)])
@pytest.mark.long("1-129-*")
def test_sizes(sq: int, sk: int, of: Of, target: str) -> None:
    request = gradients(2, 1, 64, 64, am.causal(), of=of)
    judge(request, [draw(request, sq, sk, 0.125, sq)], 0.125, seed=sk, target=target)


@everywhere
@each
@pytest.mark.long(but=("kv-sm_90a", "q-sm_100a"))
def test_sequences_of_unequal_lengths(of: Of, target: str) -> None:
    """Also with no queries, whose keys have gradients of 0, and with no keys."""
    request = gradients(2, 1, 64, 64, am.sliding_window(30, 10), lengths=RAGGED, of=of)
    sizes = [(0, 70), (70, 130), (65, 0), (1, 1), (140, 67), (5, 140)]
    given = [draw(request, sq, sk, 0.125, n) for n, (sq, sk) in enumerate(sizes)]
    judge(request, given, 0.125, target=target)


@everywhere
@each
@pytest.mark.long(but=("kv-sm_100a", "q-sm_90a"))
def test_rows_that_do_not_count(of: Of, target: str) -> None:
    """What lies behind the end of a sequence is NaN, also in LSE and delta, and has no gradient."""
    lengths = Lengths(used_q=True, used_k=True)
    request = gradients(2, 1, 64, 64, am.causal(), lengths=lengths, of=of)
    sizes = [(100, 70), (40, 130), (0, 65), (130, 0)]
    judge(
        request,
        [draw(request, *size, 0.125, n) for n, size in enumerate(sizes)],
        0.125,
        target=target,
    )


@everywhere
@pytest.mark.long("sm_90a")
def test_what_no_query_sees_is_zero(target: str) -> None:
    """Of keys in a work tile that visits no queries, too: those of the first 128."""
    request = gradients(1, 1, 64, 64, am.sliding_window(30))
    (found,) = run(request, [draw(request, 60, 300, 0.125, 1)], 0.125, target=target)
    dk, dv = found["dk"], found["dv"]
    visible = request.mask.visible(np.arange(60)[:, None], np.arange(300), 60, 300)
    seen: np.ndarray[Any, Any] = np.any(np.broadcast_to(visible, (60, 300)), axis=0)
    assert not seen[:210].any() and seen[210:].all()
    assert not dk[~seen].any() and not dv[~seen].any()
    assert dv[seen].any()


@everywhere
@each
@pytest.mark.long(but=("kv-sm_90a", "q-sm_100a"))
def test_a_large_common_part_of_scores(of: Of, target: str) -> None:
    """Weights are 2^(S - LSE), where both are about 40."""
    request = gradients(2, 1, 64, 64, am.causal(), of=of)
    judge(request, [draw(request, 130, 130, 0.125, 5, offset=40.0)], 0.125, target=target)


@everywhere
@each
@pytest.mark.long(but=("kv-sm_90a", "q-sm_100a"))
def test_tiles_that_are_hidden_are_not_visited(
    product_counts: list[int], of: Of, target: str
) -> None:
    """Of two work tiles of 128 rows under a causal mask one visits half of the columns."""
    for mask in (am.full(), am.causal(), am.sliding_window(0, 0)):
        request = gradients(1, 1, 16, 16, mask, of=of)
        judge(request, [draw(request, 256, 256, 0.125, 1)], 0.125, target=target)
    full, causal, diagonal = product_counts
    assert full > 0 and causal * 8 == full * 6 and diagonal * 8 == full * 4


@pytest.mark.parametrize(
    ("of", "head_dim", "v_head_dim"), [("q", 128, 128), ("kv", 64, 40), ("kv", 40, 128)]
)
def test_products_of_a_tile(
    product_counts: list[int], of: Of, head_dim: int, v_head_dim: int
) -> None:
    """Each multiplies 16 of K: of a head, or of the columns of a tile of scores."""
    request = gradients(1, 1, head_dim, v_head_dim, of=of)
    judge(request, [draw(request, 130, 200, 0.125, 1)], 0.125, target="sm_100a")
    steps = sum(-(-size // 16) for size in (head_dim, v_head_dim))
    tiles, columns = 4, 128
    assert product_counts == [tiles * (steps + len(request.results) * columns // 16)]


@everywhere
def test_the_result_does_not_depend_on_timing(target: str) -> None:
    request = gradients(2, 1, 64, 64, am.causal())
    given = [draw(request, 70, 150, 0.125, 1)]
    first, *others = (run(request, given, 0.125, seed, target=target)[0] for seed in range(3))
    for other in others:
        assert all(first[name].tobytes() == other[name].tobytes() for name in request.results)


def test_where_there_is_no_kernel() -> None:
    with pytest.raises(VerifyError, match="head_dim must be at most 384 with v_head_dim"):
        kernel(gradients(1, 1, 256, 136), "sm_100a")
