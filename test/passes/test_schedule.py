"""The schedule as a whole: proved for every configuration, and refused by name elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

import attn_mlir as am
from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn import build_module
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.dialect.attn.masks import CausalMask, NullMask
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
from attn_mlir.schedules.copy.kernel import schedule_tma_copy

NULL, CAUSAL = NullMask(), CausalMask()


def scheduled(configure: str = "", **changes: Any) -> Any:
    """The module of one attention kernel at the `ws` stage, its rings proved."""
    request: dict[str, Any] = {
        "heads": 4, "kv_heads": 2, "head_dim": 64, "dtype": "f16", "mask": NULL, **changes,
    }  # fmt: skip
    module = build_module(make_context(), am.mha(**request), name="k")
    run_pipeline(
        module,
        f"attn-configure{{{configure}}},convert-attn-to-ws,attn-check-stage{{stage=ws}},"
        "ws-verify-rings",
    )
    return module


def roles(module: Any) -> dict[str, ws.RoleOp]:
    (kernel,) = ir.get_ops_of_type(module, ws.KernelOp)
    return {role.label: role for role in kernel.roles()}


@pytest.mark.parametrize(
    ("configure", "mask"),
    [
        ("", NULL), ("tile-n=64", NULL), ("tile-order=persistent", NULL), ("", CAUSAL),
        ("kv-stages=2", CAUSAL), ("kv-stages=3", CAUSAL), ("q-tiles=1", CAUSAL),
        ("exp2-period=-1", CAUSAL), ("tile-order=single", CAUSAL), ("tile-order=last_first", CAUSAL),
        ("q-tiles=1 tile-order=persistent kv-stages=2", CAUSAL),
        ("tile-order=clc", NULL), ("q-tiles=1 tile-order=clc", CAUSAL),
    ],
)  # fmt: skip
def test_rings_agree_in_every_configuration(configure: str, mask: Any) -> None:
    claims = ["claim"] if "clc" in configure else []
    assert list(roles(scheduled(configure, mask=mask))) == [
        "softmax", "correction", "mma", "epilogue", "load", *claims,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("configure", "mask"),
    [
        ("num-qk-stages=2 kv-stages=2", CAUSAL),
        ("num-pv-stages=4 ordered-softmax=true tile-order=persistent", am.sliding_window(200, 0)),
        ("num-qk-stages=2 num-pv-stages=2 ordered-softmax=true tile-order=clc", NULL),
    ],
)
def test_rings_agree_with_stages_inside_products(configure: str, mask: Any) -> None:
    scheduled(configure, mask=mask, head_dim=128)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (8, 1), (6, 2)])
def test_rings_agree_for_every_grouping(heads: int, kv_heads: int) -> None:
    scheduled(heads=heads, kv_heads=kv_heads)


@pytest.mark.parametrize(
    "configure", ["", "tile-order=persistent", "tile-order=clc", "kv-stages=2"]
)
@pytest.mark.parametrize("block", [(256, 1, 128), (128, 1, 64), (64, 2, 128)])
@pytest.mark.long("block1-tile-order=clc", "block0-tile-order=persistent", "block0-tile-order=clc")
def test_rings_agree_for_lists(configure: str, block: tuple[int, int, int]) -> None:
    scheduled(configure, block=block)


@pytest.mark.parametrize("partial", [False, True])
def test_rings_agree_for_unequal_lengths(partial: bool) -> None:
    """Also of a call without any offset, one sequence less than none: it has no work tile."""
    scheduled(lengths=Lengths(ragged_q=True, ragged_k=True), partial=partial, out_dtype="f32")


@pytest.mark.parametrize(("q_tiles", "groups"), [(1, 1), (2, 2)])
def test_a_softmax_group_per_query_tile(q_tiles: int, groups: int) -> None:
    module = scheduled(f"q-tiles={q_tiles}")
    softmax = roles(module)["softmax"]
    assert (softmax.group_count, softmax.warp_range) == (groups, (0, 4 * groups))
    assert all(roles(module)[name].lane_count == 1 for name in ("mma", "epilogue", "load"))


def test_the_copy_kernel() -> None:
    context = make_context()
    with context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            kernel = schedule_tma_copy("copy")
        run_pipeline(module, "ws-verify-rings,ws-plan-memory{target=sm_90a}")
        assert kernel.names == ["src", "dst"]
    assert list(roles(module)) == ["load", "store"]
