"""Which masks have their last blocks first."""

from __future__ import annotations

from typing import Any

import pytest

import attn_mlir as am
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn import MhaOp, build_module
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.dialect.attn.masks import (
    CausalMask,
    ChunkedMask,
    Mask,
    NullMask,
    PrefixMask,
    WindowMask,
)
from attn_mlir.errors import VerifyError
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
from attn_mlir.schedules.attention.tensor_memory.config import MhaConfig
from attn_mlir.schedules.policy.tile_order import SAMPLE_BLOCKS, default_order, tile_counts

GROWS: list[Mask] = [
    CausalMask(),
    WindowMask(-1, 100),
    WindowMask(4096, 0),  # grows until the window is full
    PrefixMask(600),
    CausalMask() & WindowMask(4096, -1),
    PrefixMask(600) | WindowMask(2000, 0),
    ChunkedMask(1 << 20) & CausalMask(),
]
DOES_NOT: list[Mask] = [
    NullMask(),
    ~CausalMask(),  # shrinks
    WindowMask(100, -1),  # shrinks
    ChunkedMask(512),
    ChunkedMask(2048) & CausalMask(),  # up and down
    WindowMask(0, 0),
    WindowMask(1000, 1000),  # short at both ends
]


@pytest.mark.parametrize("mask", GROWS, ids=str)
def test_growing_masks_start_with_the_last_block(mask: Mask) -> None:
    counts = tile_counts(mask)
    assert len(counts) == SAMPLE_BLOCKS and counts[0] < counts[-1]
    assert default_order(mask) == "last_first"


@pytest.mark.parametrize("mask", DOES_NOT, ids=str)
def test_others_start_with_the_first(mask: Mask) -> None:
    assert default_order(mask) == "single"


@pytest.mark.parametrize("mask", [NullMask(), CausalMask()], ids=str)
def test_ragged_queries_leave_out_what_is_not_there(mask: Mask) -> None:
    assert default_order(mask, is_ragged=True) == "ragged"


def test_causal_blocks_meet_two_more_tiles_each() -> None:
    assert tile_counts(CausalMask()) == [2 * n for n in range(1, SAMPLE_BLOCKS + 1)]


@pytest.mark.parametrize(
    ("mask", "lengths", "options", "order"),
    [
        (PrefixMask(9), DENSE, "", "last_first"),
        (NullMask(), DENSE, "", "single"),
        (CausalMask(), DENSE, "{tile-order=clc}", "clc"),
        (CausalMask(), Lengths(ragged_q=True), "", "ragged"),
        (CausalMask(), Lengths(ragged_q=True, used_q=True), "", "ragged"),
        (CausalMask(), Lengths(ragged_q=True), "{tile-order=single}", "single"),
        (CausalMask(), Lengths(used_q=True, ragged_k=True), "", "last_first"),
    ],
    ids=["prefix", "null", "asked", "ragged", "ragged-used", "ragged-asked", "ragged-keys"],
)
def test_the_rule_is_what_configure_takes(
    mask: Mask, lengths: Lengths, options: str, order: str
) -> None:
    run_pipeline(module := attention_module(mask, lengths), f"attn-configure{options}")
    (op,) = ir.get_ops_of_type(module, MhaOp)
    assert MhaConfig.of(op).tile_order == order


def test_the_ragged_order_needs_ragged_queries() -> None:
    module = attention_module(NullMask(), Lengths(ragged_k=True))
    allowed = "single, last_first, persistent or clc"
    with pytest.raises(VerifyError, match=f"expects tile_order to be {allowed}, got ragged"):
        run_pipeline(module, "attn-configure{tile-order=ragged}")


def attention_module(mask: Mask, lengths: Lengths) -> Any:
    request = am.mha(heads=2, kv_heads=1, head_dim=64, mask=mask, lengths=lengths)
    return build_module(make_context(), request)
