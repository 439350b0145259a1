"""All gradients of attention by one kernel, which adds those of queries to memory."""

from __future__ import annotations

from collections.abc import Mapping

from attn_mlir.api.plan import Allocation, PlanView, Step
from attn_mlir.compiling.backward.accumulators import RoundRowsSpec, ZeroRowsSpec
from attn_mlir.compiling.backward.gradients import GradientsSpec
from attn_mlir.dialect.attn.workspace import TURNS
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules.policy.choice import Choice
from attn_mlir.schedules.policy.registry import mismatch, of_operation

DQ, ACCUM = "dq", "dq_accum"


def has_kernel(request: GradientsSpec, target: Target) -> bool:
    """Whether a chip has one for a request."""
    return any(
        policy.needs <= target.features and mismatch(policy, request.facts, target) is None
        for policy in of_operation(request.operation)
    )


def tiles_of(choice: Choice) -> tuple[int, int]:
    """The number of sequences, and of tiles of queries in the longest one."""
    sizes = choice.call.sizes
    return sizes["batch"], -(-sizes["sq"] // choice.block().positions)


def launches_of(
    request: GradientsSpec, arguments: Mapping[str, object], dq: Allocation, tiles: tuple[int, int]
) -> tuple[list[Step], list[Allocation]]:
    """The launches, and the memory of sums: zeros, the kernel, and rounding to dq.

    Args:
      arguments: of the kernel, by name; may have others.
      dq: the gradient of the queries. Rows do not depend on each other, so that for the first and
        the last kernel a ragged batch is one sequence.
      tiles: as of `tiles_of`.
    """
    accum = Allocation(ACCUM, "f32", dq.shape)
    sequences, count = tiles
    turns = Allocation(TURNS, "i32", (sequences, request.heads, count))
    shape = (1, *dq.shape) if request.lengths.ragged_q else dq.shape
    memory = [accum, turns] if request.in_turn else [accum]
    given = {**arguments, **{x.name: PlanView(x.name, x.shape) for x in memory}}
    zeros = ZeroRowsSpec(heads=request.heads, head_dim=request.head_dim)
    rounded = RoundRowsSpec(heads=request.heads, head_dim=request.head_dim, dtype=request.dtype)
    rows = {"accum": PlanView(ACCUM, shape)}
    steps = [
        Step(zeros, rows),
        Step(request, {x.name: given[x.name] for x in request.operands}),
        Step(rounded, {**rows, "scale": given["scale"], "rounded": PlanView(DQ, shape)}),
    ]
    return steps, memory
