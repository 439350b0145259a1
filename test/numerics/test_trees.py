"""Drafts in a tree, as in speculative decoding: masks of new tokens behind caches, by both kernels."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am

Array = npt.NDArray[Any]

pytestmark = pytest.mark.slow
BF16 = ml_dtypes.bfloat16
PARENTS = (-1, 0, 0, 1, 1)  # of drafts: two of the first one's, and two of the first of these
LENGTHS = (133, 5, 260)


def ancestors(parents: tuple[int, ...]) -> Array:
    """[sq, sq]: which drafts lead to each, itself among them."""
    found = np.eye(len(parents), dtype=bool)
    for token, parent in enumerate(parents):
        if parent >= 0:
            found[token] |= found[parent]
    return found


@pytest.mark.parametrize(
    ("schedule", "target", "options"),
    [
        ("mha-streaming", "sm_90a", {"counts_new": True}),
        ("mha-streaming", "sm_90a", {"counts_new": False, "num_splits": 3}),
        ("mha-streaming", "sm_100a", {"counts_new": True, "split_size": 128}),
        ("mha", "sm_100a", {"counts_new": True}),
        ("mha", "sm_100a", {"counts_new": False, "num_splits": 2}),
    ],
)
@pytest.mark.parametrize("by_batch", [False, True])
@pytest.mark.long(
    "True-mha-streaming-sm_90a-options0",
    "True-mha-streaming-sm_90a-options1",
    "True-mha-streaming-sm_100a-options2",
    "False-mha-sm_100a-options3",
    "False-mha-sm_100a-options4",
    "True-mha-sm_100a-options4",
    "False-mha-streaming-sm_90a-options0",
)
def test_drafts_behind_a_cache(
    schedule: str, target: str, options: dict[str, Any], by_batch: bool
) -> None:
    """Pages, lengths that count the drafts and that do not, masks of each sequence; no key is before
    the drafts of the second one."""
    rng = np.random.default_rng(0)
    options, count = dict(options), len(PARENTS)
    used, batch = np.array(LENGTHS, np.int32), len(LENGTHS)
    pools = [rng.standard_normal((80, 16, 1, 64)).astype(BF16) for _ in "kv"]
    table = rng.permutation(80)[: batch * 17].reshape(batch, 17).astype(np.int32)
    q = rng.standard_normal((batch, count, 4, 64)).astype(BF16)
    mask = ancestors(PARENTS)
    if by_batch:
        mask = np.stack([ancestors(tuple(rng.integers(-1, i) for i in range(count))) for _ in used])
    counts_new = options.pop("counts_new")
    lengths = used if counts_new else used - count
    cache = am.PagedKV(*pools, table, lengths, counts_new=counts_new)
    o, lse = am.attention(
        q,
        cache,
        mask_mod=am.mods.tree(mask, lengths, counts_new=counts_new),
        return_lse=True,
        schedule=schedule,
        device=am.EmulatorDevice("adversarial", 1, multiprocessors=2, target=target),
        **options,
    )
    for b, length in enumerate(used):
        one = slice(b, b + 1)
        k, v = (pool[table[b]].reshape(1, -1, 1, 64)[:, :length] for pool in pools)
        seen = np.ones((count, length), bool)
        seen[:, length - count :] = mask[b] if by_batch else mask
        verdict = am.reference.check_attention(
            q[one], k, v, o[one], lse[one], mask_mod=am.mods.visible_where(seen)
        )
        assert verdict.ok, f"sequence {b}: {verdict}"
