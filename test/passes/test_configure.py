"""The configuration table and the bounds of its entries, from the allowed side."""

import dataclasses
import itertools
import re
from typing import Any, cast

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn import MhaOp, build_module
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.dialect.attn.masks import CausalMask
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, target_named
from attn_mlir.errors import SpecError, VerifyError
from attn_mlir.passes.configure import Configure
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
from attn_mlir.passes.opt.reports import option_texts
from attn_mlir.schedules.attention.keys_in_rows.kernel import KeysInRowsConfig
from attn_mlir.schedules.attention.streaming.kernel import StreamingConfig
from attn_mlir.schedules.attention.tensor_memory.config import MhaConfig
from attn_mlir.schedules.attention.tensor_memory.policy import TENSOR_MEMORY, default_knobs
from attn_mlir.schedules.attention.warpgroups.kernel import RegisterConfig
from attn_mlir.schedules.backward.divided import DividedConfig
from attn_mlir.schedules.backward.fused import FusedConfig
from attn_mlir.schedules.backward.kernel import GradientConfig
from attn_mlir.schedules.backward.tensor_memory.kernel import TensorGradientConfig
from attn_mlir.schedules.core.entries import CONFIG
from attn_mlir.schedules.latent.decode.config import DecodeConfig
from attn_mlir.schedules.latent.prefill.kernel import MlaConfig
from attn_mlir.schedules.latent.sparse.kernel import SparseConfig
from attn_mlir.schedules.latent.sparse.kernel_pair import PairConfig
from attn_mlir.schedules.policy.registry import POLICIES

TARGET = target_named(DEFAULT_TARGET)


def default_config(*sizes: Any, **options: Any) -> MhaConfig:
    """The default settings as a configuration."""
    return MhaConfig(**cast("dict[str, Any]", default_knobs(*sizes, **options)))


def configured() -> MhaConfig:
    """What the pass chooses for `module()`: two heads packed, long causal tiles first."""
    return dataclasses.replace(default_config(TARGET, 128, tile_order="last_first"), packed_heads=2)


def module() -> ir.Module:
    """One causal attention, head size 128."""
    return build_module(
        make_context(), am.mha(heads=2, kv_heads=1, head_dim=128, mask=CausalMask())
    )


@pytest.mark.parametrize("q_tiles", [1, 2])
@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128])
def test_the_table_uses_the_whole_register_budget(head_dim: int, q_tiles: int):
    config = default_config(TARGET, head_dim, q_tiles=q_tiles)
    softmax = q_tiles * config.softmax_registers
    assert softmax + config.correction_registers + config.other_registers == TARGET.register_pool(
        q_tiles + 2
    )
    assert config.rows_per_cta == 128 * q_tiles


@pytest.mark.parametrize(("head_dim", "stages"), [(64, 12), (128, 5)])
def test_stages_fill_shared_memory(head_dim: int, stages: int):
    """(224 KiB - two Q tiles) / one K or V tile, of 2-byte elements; O is staged over Q."""
    tile_bytes = 128 * head_dim * 2
    assert default_config(TARGET, head_dim).kv_stages == stages
    assert (224 * 1024 - 2 * tile_bytes) // tile_bytes == stages


@pytest.mark.parametrize("head_dim", [0, 63, 249, 264])
def test_other_head_sizes_are_refused(head_dim: int):
    facts = dataclasses.replace(am.mha(heads=1, head_dim=64).facts, head_dim=head_dim)
    mismatch = TENSOR_MEMORY.mismatch(facts, TARGET)
    assert str(mismatch) == f"head_dim must be a multiple of 8 up to 256, got {head_dim}"


@pytest.mark.parametrize(
    ("head_dim", "v_head_dim", "q_tiles"),
    [(192, 128, 2), (192, 192, 1), (128, 136, 1), (256, 256, 1)],
)
def test_wide_heads_have_room_for_one_query_tile(head_dim: int, v_head_dim: int, q_tiles: int):
    config = default_config(TARGET, head_dim, v_head_dim)
    assert config.q_tiles == q_tiles
    assert config.kv_stages >= 2


def test_the_attribute_is_the_configuration():
    attention = module()
    (op,) = ir.get_ops_of_type(attention, MhaOp)
    with pytest.raises(VerifyError, match=f"has no '{CONFIG}': run attn-configure first"):
        MhaConfig.of(op)
    run_pipeline(attention, "attn-configure")
    assert MhaConfig.of(op) == configured()


@pytest.mark.parametrize(
    ("sizes", "options", "period"),
    [
        ((128, 128), {}, 16),
        ((176, 128), {}, 16),  # products take 1.19 of what exponentials take
        ((184, 128), {}, 32),
        ((192, 128), {}, 32),
        ((192, 128), {"element_bits": 8}, 16),  # products of 8 bits take half as long
        ((192, 128), {"q_tiles": 1}, 16),  # nothing to overlap with
    ],
)
def test_there_are_fewer_polynomials_where_products_take_longer(
    sizes: tuple[int, int], options: dict[str, Any], period: int
):
    assert default_config(TARGET, *sizes, **options).exp2_period == period


@pytest.mark.parametrize(
    "changes",
    [
        {"q_tiles": 1},
        {"tile_n": 64},
        {"kv_stages": 2},
        {"softmax_registers": 24},
        {"correction_registers": 24, "softmax_registers": 192, "other_registers": 104},
        {"q_tiles": 1, "softmax_registers": 256},
        {
            "q_tiles": 1,
            "softmax_registers": 240,
            "correction_registers": 136,
            "other_registers": 128,
        },
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
    config = dataclasses.replace(configured(), **changes)
    with attention.context:
        op.attributes[CONFIG] = config.to_attr()
    run_pipeline(attention, "attn-configure")
    assert MhaConfig.of(op) == config


@pytest.mark.parametrize(
    ("heads", "kv_heads", "packed"), [(4, 4, 1), (8, 2, 4), (12, 4, 1), (128, 1, 128), (20, 4, 1)]
)
def test_heads_of_a_group_are_packed_where_they_divide_a_tile(
    heads: int, kv_heads: int, packed: int
):
    request = am.mha(heads=heads, kv_heads=kv_heads, head_dim=64, mask=CausalMask())
    attention = build_module(make_context(), request)
    (op,) = ir.get_ops_of_type(attention, MhaOp)
    run_pipeline(attention, "attn-configure")
    assert MhaConfig.of(op).packed_heads == packed


@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
@pytest.mark.parametrize(
    ("lengths", "packed"),
    [
        (DENSE, 4),
        (Lengths(used_k=True), 4),
        (Lengths(ragged_q=True), 4),
        (Lengths(ragged_q=True, used_q=True), 4),
        (Lengths(used_q=True), 1),  # the end of a sequence takes their dimension of the tensor map
    ],
)
def test_heads_are_packed_however_queries_lie_but_for_padded_ones(
    lengths: Lengths, packed: int, dtype: str
):
    request = am.mha(
        heads=8, kv_heads=2, head_dim=64, dtype=dtype, mask=CausalMask(), lengths=lengths
    )
    module = build_module(make_context(), request)
    run_pipeline(module, "attn-configure")
    (op,) = ir.get_ops_of_type(module, MhaOp)
    assert MhaConfig.of(op).packed_heads == packed


@pytest.mark.parametrize("order", ["single", "counter", "persistent"])
def test_in_registers_threads_that_transpose_have_what_tiles_leave(order: str) -> None:
    """Whatever the head size and the groups; the widest heads have tiles with the least registers alone."""
    for head_dim, tiles in itertools.product((64, 96, 128, 192, 240, 256), (0, 1, 2)):
        request = am.mha(
            heads=2, head_dim=head_dim, dtype="e4m3", out_dtype="bf16", tile_order=order,
            schedule="mha-registers",
        )  # fmt: skip
        module = build_module(make_context(), request)
        options = f"target=sm_90a tile-order={order} q-tiles={tiles}"
        run_pipeline(module, f"attn-configure{{{options}}}")
        (op,) = ir.get_ops_of_type(module, MhaOp)
        config = RegisterConfig.of(op)
        assert config.q_tiles * config.attend_registers + config.other_registers <= 512
        assert config.other_registers >= 40


@pytest.mark.parametrize(("head_dim", "wanted"), [(192, 2), (256, 2), (128, 3)])
def test_query_tiles_that_there_is_no_kernel_for_are_refused(head_dim: int, wanted: int) -> None:
    """None become fewer in silence: neither in a call, nor in a request, nor by the pass."""
    spec = am.mha(heads=1, head_dim=head_dim)
    message = f"two key tiles of head_dim {head_dim} .* for {wanted} query tiles exceed shared"
    with pytest.raises(SpecError, match=message):
        default_config(TARGET, head_dim, q_tiles=wanted)
    with pytest.raises(VerifyError, match=message):
        run_pipeline(build_module(make_context(), spec), f"attn-configure{{q-tiles={wanted}}}")
    if wanted == 2:
        q = np.zeros((1, 300, 1, head_dim), np.float16)
        device = am.EmulatorDevice(target="sm_100a")
        with pytest.raises(SpecError, match=message):
            am.plan(q, q, q, query_tiles=2, device=device)
        assert am.plan(q, q, q, query_tiles=1, device=device)
    assert default_config(TARGET, head_dim).q_tiles == (1 if head_dim > 128 else 2)


def test_options_are_described_for_each_schedule_that_has_them() -> None:
    texts = option_texts(Configure)
    for policy in POLICIES:
        for knob in policy.options:
            assert knob.means in texts[knob.name]
            others = [x.means for p in POLICIES for x in p.options if x.name == knob.name]
            if any(other != knob.means for other in others):
                text = rf"[\[ ]{policy.name}[\],][^\[]*{re.escape(knob.means)}"
                assert re.search(text, texts[knob.name])


def test_configurations_have_the_knobs_of_their_policies() -> None:
    """What a kernel reads is what its policy sets, with the same defaults."""
    kinds = {
        "mha": MhaConfig, "mha-registers": RegisterConfig, "mha-streaming": StreamingConfig,
        "mha-swapped": KeysInRowsConfig, "mla": MlaConfig, "mla-registers": RegisterConfig,
        "mla-decode": DecodeConfig, "mla-decode-registers": DecodeConfig,
        "mla-decode-pair": PairConfig, "mla-decode-streaming": StreamingConfig,
        "sparse-mla": SparseConfig, "sparse-mla-pair": PairConfig,
        "sparse-mla-pair-threads": PairConfig, "kv-gradients": GradientConfig,
        "q-gradients": GradientConfig, "kv-gradients-tensor": TensorGradientConfig,
        "q-gradients-tensor": TensorGradientConfig, "gradients": FusedConfig,
        "kv-gradients-divided": DividedConfig,
        "mla-kv-gradients": GradientConfig, "mla-q-gradients": GradientConfig,
        "mla-kv-gradients-tensor": TensorGradientConfig,
        "mla-q-gradients-tensor": TensorGradientConfig,
    }  # fmt: skip
    for policy in POLICIES:
        if policy.knobs:
            assert dataclasses.asdict(kinds[policy.name]()) == policy.defaults, policy.name
