"""The memory plan of real kernels: what may share bytes, what never does, and what it adds up to."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

import attn_mlir as am
from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn import build_module
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.dialect.attn.masks import CausalMask, NullMask, WindowMask
from attn_mlir.dialect.targets.limits import target_named
from attn_mlir.errors import ResourceError
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
from attn_mlir.passes.plan_memory import Region, memory_map, plan, render_map

SHARED_LIMIT = 232448  # bytes a CTA may have; CUDA C++ Programming Guide, compute capability 10.0
TENSOR_LIMIT = 512  # columns


def kernel(head_dim: int, mask: Any, configure: str = "", **others: Any) -> tuple[Any, ws.KernelOp]:
    """An attention kernel at the `ws` stage, and the module that keeps it alive."""
    request: dict[str, Any] = {"dtype": "bf16", "head_dim": head_dim, "mask": mask} | others
    module = build_module(make_context(), am.mha(heads=2, **request), name="k")
    run_pipeline(module, f"attn-configure{{{configure}}},convert-attn-to-ws")
    (op,) = ir.get_ops_of_type(module, ws.KernelOp)
    return module, op


def planned(head_dim: int, mask: Any, configure: str = "", **others: Any) -> dict[str, Region]:
    """The memory map, by label."""
    module, op = kernel(head_dim, mask, configure, **others)
    with module.context, ir.Location.unknown():
        regions = plan(op, target_named("sm_100a"))
        assert regions == memory_map(op)
    return {region.label: region for region in regions}


@pytest.mark.parametrize(
    ("space", "field"), [("shared", "smem_bytes"), ("tensor", "tensor_columns")]
)
def test_a_kernel_may_take_all_that_there_is_and_no_more(space: str, field: str) -> None:
    regions = planned(64, NullMask()).values()
    needed = max(region.end for region in regions if region.space == space)
    module, op = kernel(64, NullMask())
    with module.context, ir.Location.unknown():
        limit = dataclasses.replace(target_named("sm_100a"), **{field: needed})
        assert max(region.end for region in plan(op, limit) if region.space == space) == needed
        less = dataclasses.replace(limit, **{field: needed - 1})
        with pytest.raises(ResourceError, match=f"needs {needed} .*, sm_100a gives {needed - 1}:"):
            plan(op, less)


@pytest.mark.parametrize("mask", [NullMask(), CausalMask()], ids=["null", "causal"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_only_q_and_the_output_share_bytes(head_dim: int, mask: Any) -> None:
    regions = planned(head_dim, mask)
    shared = [region for region in regions.values() if region.space == "shared"]
    overlaps = {
        frozenset((a.label, b.label))
        for a, b in itertools.combinations(shared, 2)
        if a.begin < b.end and b.begin < a.end
    }
    assert overlaps == {frozenset(("q", "out"))}
    assert max(region.end for region in shared) <= SHARED_LIMIT


@pytest.mark.parametrize("dtypes", [{"out_dtype": "f32"}, {"dtype": "e4m3"}], ids=["f32", "e4m3"])
def test_a_large_output_lies_beside_the_row_statistics(dtypes: dict[str, str]) -> None:
    """Q's place is too small for it; correction reads the statistics while it fills the output."""
    regions = planned(128, NullMask(), **dtypes)
    out, q, stats = (regions[label] for label in ("out", "q", "stats"))
    assert out.end - out.begin == 2 * (q.end - q.begin)
    assert out.begin <= q.begin and q.end <= out.end
    assert stats.end <= out.begin or out.end <= stats.begin


def planned_for_hopper(configure: str) -> dict[str, Region]:
    """The memory map of causal attention with head size 128, whose sums are in registers."""
    module, op = kernel(128, CausalMask(), f"target=sm_90a {configure}")
    with module.context:
        plan(op, target_named("sm_90a"))
        return {region.label: region for region in memory_map(op)}


@pytest.mark.parametrize("groups", [2, 3])
def test_the_output_of_a_group_lies_where_its_queries_were(groups: int) -> None:
    """Groups that attend by themselves finish one after the other: each has its own instance of both."""
    regions = planned_for_hopper(f"q-tiles={groups}")
    q, out = regions["q"], regions["out"]
    assert (q.begin, q.end) == (out.begin, out.end)
    kept = [region for label, region in regions.items() if label not in ("q", "out", "barriers")]
    assert all(r.end <= q.begin or q.end <= r.begin for r in kept)


def test_instances_in_turns_have_places_of_their_own() -> None:
    """A CTA that works on several tiles loads the next queries while it stores."""
    regions = planned_for_hopper("tile-order=persistent")
    q, out = regions["q"], regions["out"]
    assert q.end <= out.begin or out.end <= q.begin


EVERY_LENGTH = Lengths(ragged_q=True, ragged_k=True, used_q=True, used_k=True)


@pytest.mark.parametrize("left", [100, 4096], ids=["within a tile", "beyond the runs"])
@pytest.mark.parametrize("lengths", [DENSE, EVERY_LENGTH], ids=["dense", "ragged"])
def test_q_and_the_output_share_bytes_where_the_first_queries_see_nothing(
    lengths: Lengths, left: int
) -> None:
    """Keys are many and far: the ring proof has to find lengths for which there is work at all."""
    regions = planned(128, ~WindowMask(left, -1), "q-tiles=1", lengths=lengths)
    assert regions["q"].begin == regions["out"].begin


@pytest.mark.parametrize("head_dim", [64, 128])
def test_tensor_memory_is_disjoint(head_dim: int) -> None:
    regions = planned(head_dim, NullMask())
    scores, weights = regions["s"], regions.pop("p")
    assert (weights.begin, weights.end) == (
        scores.begin,
        scores.end - 64,
    )  # the last instance's half
    tensor = sorted((r.begin, r.end) for r in regions.values() if r.space == "tensor")
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(tensor))
    assert sum(end - begin for begin, end in tensor) == 2 * 128 + 2 * head_dim <= TENSOR_LIMIT


def test_tiles_are_aligned_to_the_swizzle() -> None:
    regions = planned(128, NullMask())
    assert all(regions[label].begin % 1024 == 0 for label in ("q", "kv", "out"))
    assert regions["kv"].end - regions["kv"].begin == 5 * 128 * 128 * 2


@pytest.mark.parametrize(("head_dim", "most"), [(64, 12), (128, 5)])
def test_the_last_stage_that_fits(head_dim: int, most: int) -> None:
    planned(head_dim, NullMask(), f"kv-stages={most}")
    message = r"the kernel needs \d+ B of shared memory, sm_100a gives 232448: .*kv \d+.*try fewer"
    with pytest.raises(ResourceError, match=message):
        planned(head_dim, NullMask(), f"kv-stages={most + 1}")


def test_a_persistent_kernel_keeps_q_and_the_output_apart() -> None:
    """The next tile's Q is loaded while the last tile's output is still being stored."""
    regions = planned(64, NullMask(), "tile-order=persistent kv-stages=4")
    q, out = regions["q"], regions["out"]
    assert q.end <= out.begin or out.end <= q.begin


def test_the_map_is_readable() -> None:
    text = render_map("k", [Region("shared", "q", 0, 65536), Region("tensor", "s", 0, 256)])
    assert text.splitlines() == [
        "memory map of k",
        "  shared        0 ..   65536    65536 B    q",
        "  tensor        0 ..     256      256 cols s",
    ]
