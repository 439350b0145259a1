"""A schedule's `needs` are the features that its kernels use: no operation asks for more."""

from __future__ import annotations

from typing import Any

import pytest

import attn_mlir as am
from attn_mlir.bench.problems import latent_requests
from attn_mlir.compiling.combination import CombineSpec
from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn import build_module
from attn_mlir.dialect.targets.features import Feature, in_words
from attn_mlir.dialect.targets.limits import target_named
from attn_mlir.lowering.state.checks import features_for
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
from attn_mlir.schedules.choice import schedule_for
from attn_mlir.schedules.core.facts import operations

SIZES: dict[str, Any] = {"heads": 8, "kv_heads": 2, "head_dim": 128}
OPTIONAL = {  # features that a kernel uses only where its target has them, or where it is asked for them
    "mha": {Feature.LAUNCH_CONTROL},
    "mha-streaming": {Feature.REGISTER_BUDGETS},
}
REQUESTS: dict[str, Any] = {
    "mha sm_100a": lambda: am.mha(**SIZES, tile_order="clc"),
    "mha-swapped sm_100a": lambda: am.mha(**SIZES, schedule="mha-swapped"),
    "mha-registers sm_90a": lambda: am.mha(**SIZES, schedule="mha-registers"),
    "mha-streaming sm_90a": lambda: am.mha(**SIZES, schedule="mha-streaming", query_tiles=2),
    "combine sm_90a": lambda: CombineSpec(heads=4, v_head_dim=64, out_dtype="f32"),
    **{f"{name} sm_100a": request for name, request in latent_requests.LATENT.items()},
}


def used(kernel: ws.KernelOp) -> set[Feature]:
    """The features that a kernel's operations need."""
    found = {Feature.CLUSTERS} if ws.cta_count(kernel) > 1 else set[Feature]()
    for role in kernel.roles():
        found.update(*(features_for(op) for op in (role, *ws.inside(role))))
    return found


@pytest.mark.parametrize("name", REQUESTS)
def test_a_kernel_uses_what_its_schedule_needs(name: str) -> None:
    chip = name.split()[-1]
    module = build_module(make_context(), REQUESTS[name]())
    (op,) = (x for kind in operations() for x in ir.get_ops_of_type(module, kind))
    schedule = schedule_for(op, target_named(chip))
    order = " tile-order=clc" if name.startswith("mha sm") else ""
    run_pipeline(module, f"attn-configure{{target={chip}{order}}},convert-attn-to-ws")
    (kernel,) = ir.get_ops_of_type(module, ws.KernelOp)
    allowed = schedule.policy.needs | OPTIONAL.get(schedule.policy.name, set())
    assert used(kernel) <= allowed, in_words(used(kernel) - allowed)
    assert Feature.COPY_ENGINE in used(kernel)


def test_features_are_named_in_their_order() -> None:
    some = {Feature.GATHER_COPIES, Feature.TENSOR_MEMORY}
    assert in_words(some) == "accumulators in tensor memory and gather copies"
    target = target_named("sm_90a")
    assert target.missing(some) == in_words(some) and not target.missing({Feature.CLUSTERS})
