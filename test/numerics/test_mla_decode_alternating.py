"""Latent attention after absorption by groups that take key tiles in turn: every element, and what it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.runtime.emulator.emulator import Stats
from attn_mlir.validation.numerics.decode import DecodeProblem, every_other_head_rises
from attn_mlir.validation.numerics.stored import Form

ALTERNATING = "mla-decode-alternating"
FAIR: dict[str, Any] = {"target": "sm_90a", "multiprocessors": 2}
LATE: dict[str, Any] = {**FAIR, "schedule": "adversarial", "seed": 3}
BLOCK = 64  # keys of a tile, and rows of queries


@pytest.fixture(autouse=True)
def alternating() -> Iterator[None]:
    """Calls are computed by the schedule."""
    planner = "attn_mlir.api.mla_decode.decode_schedule"
    with mock.patch(planner, return_value=ALTERNATING):
        yield


@pytest.mark.parametrize("device", [FAIR, LATE], ids=["fair", "late"])
@pytest.mark.long("fair")
def test_odd_and_even_numbers_of_blocks(device: dict[str, Any]) -> None:
    """Three blocks, two, one and none, in pages, with sinks of any size; NaN behind sequences."""
    problem = DecodeProblem(
        queries=2, keys=(150, 70, 3, 0), cache=Form(64), heads=32, sinks="infinite",
        options={"mask": am.causal()}, call={"num_splits": 1}, device=device,
    )  # fmt: skip
    made = problem.made()
    assert isinstance(made.cache, am.PagedKV) and np.isnan(made.cache.k_pages.astype("f4")).any()
    problem.run()


def test_rows_left_over_in_parts() -> None:
    """24 heads of three queries: two queries fill a tile, but for 16 rows. Of three queries at the end of
    one key two see none; of that key's sequence the second part is empty."""
    problem = DecodeProblem(
        queries=3, keys=(70, 1), heads=24, columns=512, dtype=np.float16,
        options={"mask": am.causal()}, call={"num_splits": 2}, device=LATE,
    )  # fmt: skip
    o, lse = problem.run()
    assert not o[1, :2].astype(np.float32).any() and np.isneginf(lse[1, :, :2]).all()


def test_both_edges_of_a_window() -> None:
    """Blocks that test the left edge, the right one, or none, for each group."""
    window = {"mask": am.sliding_window(300, 0)}
    DecodeProblem(
        keys=(7 * BLOCK + 9,), heads=64, columns=512, cache=Form(64), options=window,
        call={"num_splits": 1}, device=FAIR,
    ).run()  # fmt: skip


def test_products_and_bytes_are_those_of_the_formula(launches: list[Stats]) -> None:
    """Each key is read once and multiplied twice, and no others."""
    columns, tile = 512, BLOCK * 512 * 2  # bytes of a tile of Q or of keys
    products = columns // 16 + 4 * (BLOCK // 16)  # of a block: S, and O by 128 of its columns
    DecodeProblem(
        keys=(65, 0, 64), cache=Form(64), heads=64, columns=columns, device=FAIR,
        call={"num_splits": 1},
    ).run()  # fmt: skip
    blocks, tiles = 2 + 0 + 1, 3
    assert launches[-1].mma_count == blocks * products
    assert launches[-1].counters["tensor_load_bytes"] == (blocks + tiles) * tile


@pytest.mark.long
@pytest.mark.parametrize("device", [FAIR, LATE], ids=["fair", "late"])
def test_t9_t11_heads_of_a_warp_rescale_and_others_do_not(device: dict[str, Any]) -> None:
    assert not every_other_head_rises(device)
