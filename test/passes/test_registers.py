"""Registers of a CTA: configuration, planner and lowering follow one rule, on both sides of its bound.

384 threads are launched with 168 registers each (65536 / 384 = 170, in eights), 504 for the three warpgroups. 512 would
fit the register file, and the CTA would wait for the eight that it was not given for ever.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, cast

import pytest

import attn_mlir as am
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn import MhaOp, build_module
from attn_mlir.dialect.attn.masks import CausalMask
from attn_mlir.dialect.targets.limits import target_named
from attn_mlir.errors import ResourceError, VerifyError
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
from attn_mlir.schedules.attention.tensor_memory.config import MhaConfig
from attn_mlir.schedules.attention.tensor_memory.policy import default_knobs
from attn_mlir.schedules.core.entries import CONFIG

FITS = [(240, 136, 128), (168, 168, 168), (256, 0, 80), (0, 0, 0), (24, 224, 256)]
EXCEEDS = [(240, 136, 136), (168, 168, 176), (256, 0, 88), (24, 232, 256)]


def kernel(budgets: tuple[int, ...]) -> ir.Module:
    """A kernel whose roles do nothing, one for each warpgroup."""
    roles = "".join(
        f"""
  "ws.role"() ({{
  ^bb0(%g: i32):
    %zero = arith.constant 0 : i32
  }}) {{label_name = "r{n}", warps = array<i32: {4 * n}, 4>, groups = 1 : i64, lanes = 32 : i64,
       registers = {budget} : i64}} : () -> ()"""
        for n, budget in enumerate(budgets)
    )
    return ir.Module.parse(
        f'"ws.kernel"() ({{\n^bb0(%x: memref<?x128xbf16>):{roles}\n}}) {{sym_name = "k", '
        'arg_names = ["x"], arg_roles = ["in"], arg_dims = [["n", ""]]} : () -> ()',
        make_context(),
    )


@pytest.mark.parametrize("budgets", FITS)
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_what_a_cta_is_launched_with_can_be_given_out(
    budgets: tuple[int, ...], target: str
) -> None:
    """And each warpgroup asks for what differs from its share, upwards or downwards."""
    module = kernel(budgets)
    run_pipeline(module, f"ws-plan-memory{{target={target}}},convert-ws-to-nvvm{{target={target}}}")
    found = re.findall(r"nvvm\.setmaxregister\s+(\w+)\s+(\d+)", str(module))
    assert found == [
        ("increase" if budget > 168 else "decrease", str(budget))
        for budget in budgets
        if budget not in (0, 168)
    ]


@pytest.mark.parametrize("budgets", EXCEEDS)
def test_more_is_refused_by_the_planner(budgets: tuple[int, ...]) -> None:
    """A warpgroup without a budget keeps its 168."""
    total = sum(budget or 168 for budget in budgets)
    with pytest.raises(
        ResourceError, match=rf"need {total} registers .* sm_100a gives 504: r0 {budgets[0]}"
    ):
        run_pipeline(kernel(budgets), "ws-plan-memory")


@pytest.mark.parametrize("budgets", EXCEEDS)
def test_more_is_refused_in_a_plan_by_hand(budgets: tuple[int, ...]) -> None:
    """Lowering is where it would become code that hangs."""
    module = kernel(budgets)
    (op,) = module.body.operations
    with module.context:
        op.attributes["ws.plan"] = ir.Attribute.parse(
            "{smem_bytes = 8 : i64, tensor_cols = 0 : i64, tensor_address = 0 : i64}"
        )
    with pytest.raises(ResourceError, match="sm_100a gives 504"):
        run_pipeline(module, "convert-ws-to-nvvm")


@pytest.mark.parametrize(
    ("groups", "most"),
    [(1, 256), (2, 512), (3, 504), (4, 512), (5, 480), (8, 512)],
)
def test_the_bound_by_warpgroups(groups: int, most: int) -> None:
    """As ptxas 13.0 and 13.5 count: 255 (of 256), 255, 168, 128, 96 and 64 per thread."""
    share = most // groups
    fits = (share,) * groups
    run_pipeline(kernel(fits), "ws-plan-memory")
    if share < 256:
        with pytest.raises(ResourceError, match=rf"sm_100a gives {most}:"):
            run_pipeline(kernel((*fits[1:], share + 8)), "ws-plan-memory")


@pytest.mark.parametrize(("other", "fits"), [(128, True), (136, False)])
def test_the_configuration_has_the_same_bound(other: int, fits: bool) -> None:
    request = am.mha(heads=1, head_dim=128, mask=CausalMask())
    attention = build_module(make_context(), request)
    (op,) = ir.get_ops_of_type(attention, MhaOp)
    knobs = default_knobs(target_named("sm_100a"), 128, q_tiles=1)
    config = dataclasses.replace(
        MhaConfig(**cast("dict[str, Any]", knobs)),
        softmax_registers=240,
        correction_registers=136,
        other_registers=other,
    )
    with attention.context:
        op.attributes[CONFIG] = config.to_attr()
    if fits:
        run_pipeline(attention, "attn-configure,convert-attn-to-ws,ws-plan-memory")
    else:
        with pytest.raises(VerifyError, match="at most 128, as .* leave of 504, got 136"):
            run_pipeline(attention, "attn-configure")


def test_roles_of_a_warpgroup_share_a_budget() -> None:
    """The planner says so, not only the lowering."""
    text = str(kernel((168, 168, 168))).replace("array<i32: 4, 4>", "array<i32: 4, 1>")
    text = text.replace("array<i32: 8, 4>", "array<i32: 5, 1>")
    same = ir.Module.parse(text, make_context())
    run_pipeline(same, "ws-plan-memory")
    text = re.sub(r"(?s)registers = 168(?!.*registers)", "registers = 176", text)
    with pytest.raises(
        VerifyError, match=r"one register budget in warps 4\.\.7, got r1 168, r2 176"
    ):
        run_pipeline(ir.Module.parse(text, make_context()), "ws-plan-memory")
