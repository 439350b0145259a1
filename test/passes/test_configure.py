"""The configuration table and the bounds of its entries, from the allowed side."""

import dataclasses

import pytest

from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn import MhaOp, build_mha_module
from attn_mlir.dialect.attn.masks import CausalMask
from attn_mlir.errors import SpecError, VerifyError
from attn_mlir.passes.configure import (
    CONFIG,
    HEAD_DIMS,
    REGISTER_BUDGET,
    Config,
    default_config,
)
from attn_mlir.passes.pipeline import run_pipeline


def module() -> ir.Module:
    """One causal attention, head size 128."""
    return build_mha_module(
        make_context(),
        name="attn",
        heads=2,
        kv_heads=1,
        head_dim=128,
        dtype="bf16",
        mask=CausalMask(),
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_table_uses_the_whole_register_budget(head_dim: int, causal: bool):
    config = default_config(head_dim, causal=causal)
    total = 2 * config.softmax_registers + config.correction_registers + config.other_registers
    assert total == REGISTER_BUDGET
    assert config.rows_per_cta == 256


@pytest.mark.parametrize(("head_dim", "stages"), [(64, 12), (128, 5)])
def test_stages_fill_shared_memory(head_dim: int, stages: int):
    """(224 KiB - two Q tiles) / one K or V tile, of 2-byte elements; O is staged over Q."""
    tile_bytes = 128 * head_dim * 2
    assert default_config(head_dim, causal=False).kv_stages == stages
    assert (224 * 1024 - 2 * tile_bytes) // tile_bytes == stages


def test_other_head_sizes_are_refused():
    with pytest.raises(SpecError, match=r"head_dim 96 has no kernel: .* \(pad to 128\?\)"):
        default_config(96, causal=False)


def test_the_attribute_is_the_configuration():
    attention = module()
    (op,) = ir.get_ops_of_type(attention, MhaOp)
    with pytest.raises(VerifyError, match=f"has no '{CONFIG}': run attn-configure first"):
        Config.of(op)
    run_pipeline(attention, "attn-configure")
    assert Config.of(op) == default_config(128, causal=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"q_tiles": 1},
        {"tile_n": 64},
        {"kv_stages": 2},
        {"softmax_registers": 24},
        {"correction_registers": 24, "softmax_registers": 192, "other_registers": 104},
        {"q_tiles": 1, "softmax_registers": 256},
        {"exp2_period": 0},
        {"exp2_period": 4},
        {"exp2_period": 128},
        {"exp2_start": 0},
        {"exp2_start": 3},
        {"rescale_threshold": 0},
    ],
)
def test_the_bounds_themselves_are_allowed(changes: dict[str, int]):
    attention = module()
    (op,) = ir.get_ops_of_type(attention, MhaOp)
    config = dataclasses.replace(default_config(128, causal=True), **changes)
    with attention.context:
        op.attributes[CONFIG] = config.to_attr()
    run_pipeline(attention, "attn-configure")
    assert Config.of(op) == config
