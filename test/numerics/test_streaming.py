"""Attention of few queries, keys streaming past them: the same kernel for both targets, on the emulator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.errors import SpecError

TARGETS = ("sm_90a", "sm_100a")


def operands(sq: int, sk: int, heads: int, kv_heads: int, d: int, dv: int, batch: int = 1) -> Any:
    """Random q, k, v in bf16."""
    rng = np.random.default_rng(sq * 1000 + sk)
    shapes = ((sq, heads, d), (sk, kv_heads, d), (sk, kv_heads, dv))
    return [rng.standard_normal((batch, *shape)).astype(ml_dtypes.bfloat16) for shape in shapes]


def device(target: str, seed: int = 0) -> am.EmulatorDevice:
    """An emulator with two multiprocessors, so that persistent CTAs take several work tiles."""
    kind = "adversarial" if seed else "fair"
    return am.EmulatorDevice(kind, seed, multiprocessors=2, target=target)


def wrong(q: Any, k: Any, v: Any, target: str, seed: int = 0, **options: Any) -> str:
    """What is wrong with O and LSE of a call, or nothing."""
    o, lse = am.attention(
        q, k, v, **options, schedule="mha-streaming", return_lse=True, device=device(target, seed)
    )
    options.pop("num_splits", None)
    verdict = am.reference.check_attention(q, k, v, o, lse, **options)
    return "" if verdict.ok else str(verdict)


@pytest.mark.parametrize(
    ("d", "dv", "target"),
    [
        (8, 8, "sm_100a"),
        (80, 80, "sm_90a"),
        (128, 128, "sm_90a"),
        (128, 128, "sm_100a"),
        (192, 128, "sm_90a"),
        (64, 144, "sm_100a"),
        (192, 192, "sm_90a"),
        (256, 256, "sm_100a"),
    ],
)
def test_head_sizes(d: int, dv: int, target: str) -> None:
    """From one slice of O to two, the last one of another width than O has columns left."""
    q, k, v = operands(3, 150, 4, 2, d, dv)
    assert not wrong(q, k, v, target, seed=1, mask=am.causal())


@pytest.mark.parametrize(
    ("sq", "heads", "kv_heads", "tiles"), [(1, 8, 1, 1), (4, 8, 2, 2), (5, 16, 1, 5), (17, 3, 1, 6)]
)
def test_work_tiles(
    sq: int, heads: int, kv_heads: int, tiles: int, product_counts: list[int]
) -> None:
    """Groups of 8, 4 and 16 share their tiles, a group of 3 does not; keys 0 .. 332 are 3 key tiles.

    A warp takes 4 + 4 products of K = 16 to get 16 x 32 scores of D = 64, and as many for O, in
    blocks of 8 columns: 4 x 4 and 8 x 2 instructions.
    """
    q, k, v = operands(sq, 333, heads, kv_heads, 64, 64)
    assert not wrong(q, k, v, "sm_90a", mask=am.full())
    assert product_counts == [tiles * 3 * 4 * (16 + 16)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tiles_one_after_the_other(target: str, seed: int) -> None:
    """Eight work tiles on two CTAs: loads go on into the next tile, and warps drift apart."""
    q, k, v = operands(2, 400, 8, 2, 64, 64, batch=4)
    assert not wrong(q, k, v, target, seed, mask=am.causal())


@pytest.mark.parametrize("parts", [3, 7])
def test_parts_of_the_keys(parts: int) -> None:
    """Of 4 key tiles, so that some of 7 parts are empty; sinks join in the combination."""
    q, k, v = operands(1, 500, 8, 1, 128, 128, batch=2)
    sinks = np.linspace(-1, 3, 8, dtype=np.float32)
    assert not wrong(q, k, v, "sm_90a", num_splits=parts, sinks=sinks, mask=am.causal())


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"query_tiles": 1}, "schedule mha-streaming has no query_tiles, got 1"),
        ({"tile_order": "clc"}, "schedule mha-streaming has no kernel for tile_order clc"),
        (
            {"schedule": "mha-stream"},
            "schedule must be mha, mha-streaming or None, got 'mha-stream'",
        ),
    ],
)
def test_what_there_is_no_kernel_for(option: dict[str, Any], text: str) -> None:
    q, k, v = operands(1, 20, 1, 1, 64, 64)
    with pytest.raises(SpecError, match=text):
        am.attention(q, k, v, **{"schedule": "mha-streaming", **option}, device="emulator")


def test_eight_bits_have_no_kernel_for_hopper() -> None:
    q, k, v = (x.astype(ml_dtypes.float8_e4m3fn) for x in operands(1, 20, 1, 1, 64, 64))
    one = np.ones((1, 1), np.float32)
    factors = {"q_descale": one, "k_descale": one, "v_descale": one}
    with pytest.raises(SpecError, match="sm_90a has kernels for bf16 and f16, got dtype e4m3"):
        am.attention(q, k, v, **factors, device=device("sm_90a"))


@pytest.mark.parametrize("page", [8, 192])
def test_pages_that_do_not_go_with_its_key_tiles(page: int) -> None:
    q, k, v = operands(1, 2 * page, 1, 1, 64, 64)
    table = np.array([[1, 0]], np.int32)
    pool = (x.reshape(2, page, 1, 64) for x in (k, v))
    cache = am.PagedKV(*pool, page_table=table, seqused=np.array([page + 3], np.int32))
    with pytest.raises(SpecError, match=f"mha-streaming has no kernel for pages of {page}: suppor"):
        am.attention(q, cache, schedule="mha-streaming", device="emulator")
