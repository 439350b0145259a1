"""The target: one table that the assembler agrees with, kept on the module from the first pass on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.combination import CombineSpec
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn import build_module
from attn_mlir.dialect.attn.masks import CausalMask
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import TARGETS, WARPGROUP_THREADS, target_named
from attn_mlir.errors import TargetError
from attn_mlir.lowering.ptxas import assemble
from attn_mlir.passes.infrastructure.pipeline import run_pipeline

pytestmark = pytest.mark.ptxas

CHIPS = sorted(TARGETS)
SETMAXNREG = "setmaxnreg.dec.sync.aligned.u32"
INSTRUCTIONS = {
    Feature.TENSOR_MEMORY: "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [a1], 32;",
    Feature.WARPGROUP_PRODUCTS: "wgmma.fence.sync.aligned;",
    Feature.WARP_PRODUCTS: "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
    "{f0, f1, f2, f3}, {a0, a1, a2, a3}, {a4, a5}, {f0, f1, f2, f3};",
    Feature.NARROW_WARP_PRODUCTS: "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
    "{f0, f1, f2, f3}, {a0, a1, a2, a3}, {a4, a5}, {f0, f1, f2, f3};",
    Feature.COPY_ENGINE: "cp.async.bulk.tensor.2d.shared::cta.global.tile"
    ".mbarrier::complete_tx::bytes [a1], [d1, {a1, a1}], [a1];",
    Feature.GATHER_COPIES: "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4"
    ".mbarrier::complete_tx::bytes [a1], [d1, {a1, a1, a1, a1, a1}], [a1];",
    Feature.CLUSTERS: "mapa.shared::cluster.u32 a2, a1, a0;",
    Feature.LAUNCH_CONTROL: "clusterlaunchcontrol.try_cancel.async.shared::cta"
    ".mbarrier::complete_tx::bytes.b128 [a1], [a1];",
    Feature.REGISTER_BUDGETS: f"{SETMAXNREG} 64;",
    Feature.PACKED_F32: "fma.rn.f32x2 d1, d1, d1, d1;",
    Feature.MAX3: "max.f32 f0, f0, f0, f0;",
}
"""An instruction of each feature, that the assembler accepts where a chip has it."""


def attention(schedule: str | None = None) -> ir.Module:
    request = am.mha(heads=2, kv_heads=1, head_dim=64, mask=CausalMask(), schedule=schedule)
    return build_module(make_context(), request)


def accepts(chip: str, body: str, head: str = ".reqntid 128,1,1\n.minnctapersm 1") -> Any:
    """What the assembler makes of a kernel's body, or None where it refuses it."""
    text = f""".version 8.8
.target {chip}
.address_size 64
.visible .entry k(.param .u64 out)
{head}
{{ .reg .b32 a<8>; .reg .b64 d<8>; .reg .f32 f<8>; .reg .pred p; .shared .align 16 .b8 s[64];
  ld.param.u64 d0, [out]; mov.u32 a0, %tid.x; mov.b32 f0, a0; mov.b64 d1, {{a0, a0}};
  mov.u32 a1, s;
  {body}
  st.global.u64 [d0], d1; st.global.f32 [d0+8], f0; ret; }}
"""
    try:
        return assemble(text, chip)
    except TargetError as error:
        assert "refuses the PTX" in str(error)
        return None


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("warpgroups", [1, 2, 3, 4, 5, 8])
def test_the_assembler_launches_with_as_many_registers(chip: str, warpgroups: int) -> None:
    """It counts at most 255 of 256: the last one cannot be named, but is there."""
    head = f".reqntid {warpgroups * WARPGROUP_THREADS},1,1\n.minnctapersm 1"
    found = accepts(chip, f"{SETMAXNREG} 24;", head)
    assert found.registers == min(target_named(chip).launch_registers(warpgroups), 255)


@pytest.mark.parametrize("chip", CHIPS)
def test_the_assembler_knows_the_same_limits(chip: str) -> None:
    target = target_named(chip)
    least, most, step = target.least_registers, target.registers_per_thread, target.register_step
    for registers, fits in [
        (least, True), (least - step, False), (least + 1, False), (most, True), (most + step, False),
    ]:  # fmt: skip
        assert bool(accepts(chip, f"{SETMAXNREG} {registers};")) == fits, registers
    for barrier in (target.named_barriers - 1, target.named_barriers):
        found = accepts(chip, f"barrier.cta.sync {barrier};")
        assert bool(found) == (barrier < target.named_barriers)


@pytest.mark.parametrize("chip", CHIPS)
def test_the_assembler_knows_the_same_instructions(chip: str) -> None:
    for feature, body in INSTRUCTIONS.items():
        assert bool(accepts(chip, body)) == (feature in target_named(chip).features), body


@pytest.mark.parametrize("chip", CHIPS)
def test_limits_go_with_features(chip: str) -> None:
    """A chip without tensor memory has no columns of it; one without clusters runs single CTAs."""
    target = target_named(chip)
    assert (target.tensor_columns > 0) == (Feature.TENSOR_MEMORY in target.features)
    assert (target.cluster_ctas > (1, 1)) == (Feature.CLUSTERS in target.features)


def test_every_feature_has_an_instruction_here() -> None:
    assert set(INSTRUCTIONS) == set(Feature)


def test_the_module_keeps_its_target() -> None:
    """What follows need not say it again, and cannot say another."""
    module = attention()
    run_pipeline(module, "attn-configure{target=sm_100a}")
    assert ir.StringAttr(module.operation.attributes["attn.target"]).value == "sm_100a"
    with pytest.raises(TargetError, match="the module is for sm_100a, got target sm_90a"):
        run_pipeline(module, "convert-attn-to-ws{target=sm_90a}")
    run_pipeline(module, "convert-attn-to-ws,ws-plan-memory")
    with pytest.raises(TargetError, match="the module is for sm_100a, got target sm_90a"):
        run_pipeline(module, "convert-ws-to-nvvm{target=sm_90a}")
    run_pipeline(module, "convert-ws-to-nvvm{target=sm_100a}")
    assert 'chip = "sm_100a"' in str(module)


@pytest.mark.parametrize("pipeline", ["attn-configure", "convert-attn-to-ws", "attn-to-nvvm"])
def test_a_schedule_may_need_what_a_target_lacks(pipeline: str) -> None:
    """The table of schedules says what is missing; the chip's name is nowhere compared."""
    with pytest.raises(
        TargetError,
        match="no schedule of attn.mha applies to sm_90a: mha needs accumulators in tensor mem",
    ):
        run_pipeline(attention(schedule="mha"), f"{pipeline}{{target=sm_90a}}")


def test_a_request_is_refused_by_its_schedule() -> None:
    with pytest.raises(TargetError, match="no schedule of attn.mha applies to sm_90a: mha needs"):
        am.compile(am.mha(heads=1, head_dim=64, schedule="mha"), target="sm_90a")


@pytest.mark.parametrize("value", ["3 : i32", '"sm_42"'])
def test_a_module_for_no_known_chip(value: str) -> None:
    module = attention()
    with module.context:
        module.operation.attributes["attn.target"] = ir.Attribute.parse(value)
    with pytest.raises(TargetError, match="no target 'sm_42'|to be a chip's name, got 3 : i32"):
        run_pipeline(module, "attn-configure")


def test_a_schedule_that_needs_no_product_runs_on_every_target(tmp_path: Path) -> None:
    """`combine` moves tiles and adds: two parts of which the second saw no key are the first."""
    parts = np.random.default_rng(1).standard_normal((2, 1, 130, 4, 64), np.float32)
    lses = np.zeros((2, 1, 4, 130), np.float32)
    lses[1] = -np.inf
    for chip in CHIPS:
        request = CombineSpec(heads=4, v_head_dim=64, out_dtype="f32")
        module = build_module(make_context(), request)
        path = tmp_path / f"{chip}.attn"
        run_pipeline(module, f"attn-to-bundle{{target={chip} output={path}}}")
        kernel = am.load(path)
        assert kernel.bundle.target == chip and f".target {chip}" in kernel.bundle.ptx
        o = np.full((1, 130, 4, 64), np.nan, np.float32)
        kernel(parts, lses, o, device="emulator")
        assert np.array_equal(o, parts[0])
