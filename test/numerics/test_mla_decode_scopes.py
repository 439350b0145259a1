"""Latent attention of a query over the rows of two pools at once: every element, and bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.reference import check_mla_decode

BF16: Any = ml_dtypes.bfloat16
COLUMNS, HEADS, SCALE = 512, 8, 0.05
DEVICES = {
    "fair": am.EmulatorDevice(target="sm_100a", check="all"),
    "late": am.EmulatorDevice("adversarial", 3, target="sm_100a", check="all"),
}


def drawn(random: Any, pages: int, page: int, counts: list[list[int]], topk: int) -> Any:
    """A pool with NaN in rows that no entry names that counts; lists, and how many entries count."""
    lengths = np.array(counts, np.int32)
    indices = random.integers(-3, pages * page + 3, (*lengths.shape, topk)).astype(np.int32)
    counting = np.arange(topk) < lengths[..., None]
    live = np.where(counting & (indices >= 0) & (indices < pages * page), indices, -1)
    pool = np.full((pages * page, COLUMNS), np.nan, BF16)
    named = np.unique(live[live >= 0])
    pool[named] = random.standard_normal((len(named), COLUMNS)).astype(BF16)
    return pool.reshape(pages, page, 1, COLUMNS), indices, lengths, live


# entries that count, of the cache and of the other pool: of both, of one alone, of neither
COUNTS = [[70], [0], [0]], [[20], [5], [0]]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.long("late")
def test_every_element(device: str) -> None:
    """In two parts of each pool, of which the second has one block of entries alone."""
    random = np.random.default_rng(0)
    q = random.standard_normal((3, 1, HEADS, COLUMNS)).astype(BF16)
    sinks = np.array([np.inf, -np.inf, *random.standard_normal(HEADS - 2)], np.float32)
    pool, indices, lengths, live = drawn(random, 9, 5, COUNTS[0], 70)
    other, others, other_lengths, other_live = drawn(random, 2, 7, COUNTS[1], 20)
    cache = am.PagedKV(pool, None, np.zeros((1, 1), np.int32))
    lists = {"indices": indices, "topk_length": lengths, "extra_indices": others}
    options: dict[str, Any] = {**lists, "extra_kv": other, "extra_topk_length": other_lengths}
    options |= {"sinks": sinks, "num_splits": 2, "device": DEVICES[device]}
    o, lse = am.mla_decode(q, cache, scale=SCALE, **options)
    rows = np.concatenate([pool.reshape(-1, COLUMNS), other.reshape(-1, COLUMNS)])
    behind = np.where(other_live < 0, -1, other_live + pool.shape[0] * pool.shape[1])
    both = np.concatenate([live, behind], 2)
    verdict = check_mla_decode(q, rows, o, lse, scale=SCALE, sinks=sinks, indices=both)
    assert verdict.ok, str(verdict)
    assert not o[2].any() and bool((lse[2] == -np.inf).all())


def test_rows_of_8_bits_with_pages_of_their_own() -> None:
    """`model1`, whose pages are part of the kernel, and lists without an entry."""
    random = np.random.default_rng(0)
    q = random.standard_normal((1, 1, HEADS, COLUMNS)).astype(BF16)
    pools = [random.standard_normal((2, page, 1, COLUMNS)).astype(BF16) for page in (8, 3)]
    packed = [am.pack_latent(pool, "model1").kv for pool in pools]
    rows = [am.unpack_latent(x, "model1").reshape(-1, COLUMNS) for x in packed]
    lists = [random.integers(0, len(x), (1, 1, 6)).astype(np.int32) for x in rows]
    cache = am.PagedKV(packed[0], None, np.zeros((1, 1), np.int32))
    options: dict[str, Any] = {
        "kv_format": "model1",
        "extra_kv": packed[1],
        "device": DEVICES["fair"],
    }
    o, lse = am.mla_decode(
        q, cache, scale=SCALE, indices=lists[0], extra_indices=lists[1], **options
    )
    both = np.concatenate([lists[0], lists[1] + len(rows[0])], 2)
    verdict = check_mla_decode(q, np.concatenate(rows), o, lse, scale=SCALE, indices=both)
    assert verdict.ok, str(verdict)
    none = np.zeros((1, 1, 0), np.int32)
    alone = am.mla_decode(q, cache, scale=SCALE, indices=lists[0], extra_indices=none, **options)
    verdict = check_mla_decode(q, rows[0], *alone, scale=SCALE, indices=lists[0])
    assert verdict.ok, str(verdict)
