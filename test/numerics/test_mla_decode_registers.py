"""Latent attention after absorption where sums are in registers: every element, and what it takes.

Tests named after a trap of latent attention have its number.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.mla_decode import MlaDecodeSpec
from attn_mlir.compiling.routes import choice_of
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.errors import VerifyError
from attn_mlir.runtime.emulator.emulator import Stats
from attn_mlir.runtime.kernel import Machine
from attn_mlir.validation.numerics.decode import DecodeProblem, every_other_head_rises
from attn_mlir.validation.numerics.stored import Form

HELD, STREAMED = "mla-decode-registers", "mla-decode-streaming"
FAIR: dict[str, Any] = {"target": "sm_90a", "multiprocessors": 2}
LATE: dict[str, Any] = {**FAIR, "schedule": "adversarial", "seed": 3}
CAUSAL = {"mask": am.causal()}
BLOCK = 64  # keys of a tile, and rows of queries

PAGED = DecodeProblem(
    queries=2,
    keys=(150, 70),
    cache=Form(64),
    heads=32,
    sinks="infinite",
    options=CAUSAL,
    call={"num_splits": 1},
    device=FAIR,
)
LEFT_OVER = DecodeProblem(
    queries=3,
    keys=(70, 1),
    heads=24,
    columns=512,
    dtype=np.float16,
    options=CAUSAL,
    call={"num_splits": 2},
    device=LATE,
)
PAGES = {"cache": Cache(page_size=16, pages="table"), "lengths": Lengths(used_k=True)}


def test_rows_left_over_in_parts() -> None:
    """24 heads of three queries: two queries fill a tile, but for 16 rows. Of three queries at the end of
    one key two see none; of that key's sequence the second part is empty."""
    o, lse = LEFT_OVER.run()
    assert not o[1, :2].astype(np.float32).any() and np.isneginf(lse[1, :, :2]).all()


def test_pages_fair_and_late() -> None:
    """With NaN behind sequences, and sinks of any size."""
    made = PAGED.made()
    assert isinstance(made.cache, am.PagedKV) and np.isnan(made.cache.k_pages.astype("f4")).any()
    late = dataclasses.replace(PAGED, device=LATE)
    for fair, found in zip(PAGED.run(), late.run(), strict=True):
        assert fair.tobytes() == found.tobytes()


def test_products_and_bytes_are_those_of_the_formula(launches: list[Stats]) -> None:
    """Each key is read once and multiplied twice, whatever the parts, and no others."""
    columns, tile = 512, BLOCK * 512 * 2  # bytes of a tile of Q or of keys
    products = columns // 16 + 2 * (BLOCK // 16)  # of a block: S, and O by halves of its columns
    dense = DecodeProblem(
        keys=(65, 0, 64), cache=Form(64), heads=64, columns=columns, device=FAIR,
        call={"num_splits": 1},
    )  # fmt: skip
    dense.run()
    blocks, tiles = 2 + 0 + 1, 3
    assert launches[-1].mma_count == blocks * products
    assert launches[-1].counters["tensor_load_bytes"] == (blocks + tiles) * tile
    dataclasses.replace(dense, call={"num_splits": 2}).run()
    assert launches[-2].mma_count == blocks * products
    assert launches[-2].counters["tensor_load_bytes"] == (blocks + 2 * tiles) * tile


@pytest.mark.parametrize("device", [FAIR, LATE], ids=["fair", "late"])
@pytest.mark.long("fair")
def test_t9_t11_heads_of_a_warp_rescale_and_others_do_not(device: dict[str, Any]) -> None:
    assert not every_other_head_rises(device)


@pytest.mark.parametrize("device", [FAIR, LATE], ids=["fair", "late"])
@pytest.mark.long("fair")
def test_few_rows_of_a_sequence(device: dict[str, Any]) -> None:
    """8 of 64, of a sequence in two parts and of one that has no rows; NaN behind them."""
    DecodeProblem(
        queries=1, keys=(150, 0), cache=Form(64), heads=8, sinks="finite",
        call={"num_splits": 2}, device=device,
    ).run()  # fmt: skip


@pytest.mark.parametrize("heads", [8, 16, 56, 64, 128])
def test_sequences_and_lists_choose_the_schedule(heads: int) -> None:
    """A sequence of 32768 rows took 645 us with 16 heads on an H200 by single warps, and takes 38 by tiles of 64."""
    assert choice_of(MlaDecodeSpec(heads=heads), {}, Machine("sm_90a", 132)).name == HELD
    listed = MlaDecodeSpec(heads=heads, indices=True)
    assert heads % 16 or choice_of(listed, {}, Machine("sm_90a", 132)).name == STREAMED


@pytest.mark.parametrize(("topk", "parts"), [(512, 1), (2048, 4), (16384, 11)])
def test_lists_are_put_together_by_the_last_cta(topk: int, parts: int) -> None:
    """Which takes as long for a part as products do for 128 entries."""
    spec = MlaDecodeSpec(heads=16, indices=True, schedule=STREAMED)
    sizes = {"batch": 1, "sq": 1, "sk": topk}
    assert choice_of(spec, sizes, Machine("sm_90a", 132)).splits() == parts


@pytest.mark.parametrize(("batch", "keys", "parts"), [(4, 16384, 132 // (4 * 2)), (1, 4096, 22)])
def test_parts_are_chosen_by_tiles_of_64_rows(batch: int, keys: int, parts: int) -> None:
    """And by what a part costs: 32 tiles of 128 keys have 22 parts, the root of 16 x 32."""
    spec = MlaDecodeSpec(heads=128, schedule=HELD)
    sizes = {"batch": batch, "sq": 1, "sk": keys}
    assert choice_of(spec, sizes, Machine("sm_90a", 132)).splits() == parts


@pytest.mark.ptxas
@pytest.mark.parametrize(
    "options",
    [
        {"heads": 24, "head_dim": 512, "mask": am.causal(), "sinks": True, **PAGES},
        {"heads": 64, "partial": True, "mask": am.sliding_window(70, 0), **PAGES},
    ],
    ids=["whole", "part"],
)
@pytest.mark.long("part")
def test_nothing_is_spilled(options: dict[str, Any]) -> None:
    """Of the kernels with most to do beside their products."""
    spec = MlaDecodeSpec(**options, schedule=HELD)
    assert am.compile(spec, target="sm_90a").report["spill_bytes"] == 0


def test_the_result_is_staged_where_queries_were() -> None:
    bundle = am.compile(MlaDecodeSpec(heads=64), target="sm_90a")
    regions: Any = bundle.report["memory_map"]
    places = {x["what"]: (x["begin"], x["end"]) for x in regions if x["space"] == "shared"}
    assert places["q"][0] <= places["out"][0] < places["out"][1] <= places["q"][1]


def test_there_is_no_kernel_for_lists() -> None:
    told = f"has no kernel: {HELD}: lists of rows must be left out"
    with pytest.raises(VerifyError, match=told):
        am.compile(MlaDecodeSpec(heads=64, indices=True, schedule=HELD), target="sm_90a")
