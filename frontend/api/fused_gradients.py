"""All gradients of attention by one kernel, which adds those of queries to memory."""

from __future__ import annotations

from collections.abc import Mapping

from attn_mlir.api.plan import Allocation, PlanView, Step
from attn_mlir.compiling.backward.accumulators import RoundRowsSpec, ZeroRowsSpec
from attn_mlir.compiling.backward.gradients import GradientsSpec
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules.policy.registry import mismatch, of_operation

DQ, ACCUM = "dq", "dq_accum"


def has_kernel(request: GradientsSpec, target: Target) -> bool:
    """Whether a chip has one for a request."""
    return any(
        policy.needs <= target.features and mismatch(policy, request.facts, target) is None
        for policy in of_operation(request.operation)
    )


def launches_of(
    request: GradientsSpec, arguments: Mapping[str, object], dq: Allocation
) -> tuple[list[Step], Allocation]:
    """The launches and the memory that is added to: zeros, the kernel, and rounding to dq.

    Args:
      arguments: of the kernel, by name; may have others.
      dq: the gradient of the queries. Rows do not depend on each other, so that for the first and
        the last kernel a ragged batch is one sequence.
    """
    accum = Allocation(ACCUM, "f32", dq.shape)
    shape = (1, *dq.shape) if request.lengths.ragged_q else dq.shape
    given = {**arguments, ACCUM: PlanView(ACCUM, dq.shape)}
    zeros = ZeroRowsSpec(heads=request.heads, head_dim=request.head_dim)
    rounded = RoundRowsSpec(heads=request.heads, head_dim=request.head_dim, dtype=request.dtype)
    rows = {"accum": PlanView(ACCUM, shape)}
    steps = [
        Step(zeros, rows),
        Step(request, {x.name: given[x.name] for x in request.operands}),
        Step(rounded, {**rows, "scale": given["scale"], "rounded": PlanView(DQ, shape)}),
    ]
    return steps, accum
