"""Register budgets of a kernel's warpgroups, and whether the CTA has enough registers for them.

The planner, hand-written plans and the lowering share this rule: the warpgroups of a CTA divide the
registers that it is launched with. A warpgroup without a budget, or without a role, keeps an equal
share.
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect.diagnostics import location_text
from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS, Target
from attn_mlir.errors import ResourceError, VerifyError


def warpgroup_count(kernel: ws.KernelOp) -> int:
    """Warpgroups of a CTA: whole ones up to the last warp of any role, at least one."""
    last = max((sum(role.warp_range) for role in kernel.roles()), default=1)
    return -(-last // WARPGROUP_WARPS)


def budget_of(roles: Sequence[ws.RoleOp], first: int, end: int) -> int:
    """The register budget per thread of the roles in warps `first` to `end` - 1; 0 for none.

    Raises:
      VerifyError: their budgets differ.
    """
    budgets = {role.register_count for role in roles}
    if len(budgets) > 1:
        names = ", ".join(f"{role.label} {role.register_count}" for role in roles)
        raise VerifyError(
            f"'ws.role' op expects one register budget in warps {first}..{end - 1}, got {names}",
            op="ws.role",
        )
    return budgets.pop() if budgets else 0


def check_registers(kernel: ws.KernelOp, target: Target) -> None:
    """Checks that the budgets of all warpgroups do not exceed the registers of a CTA.

    Raises:
      VerifyError: the budgets of one warpgroup's roles differ.
      ResourceError: the sum is too large; the message lists the budgets.
    """
    count = warpgroup_count(kernel)
    share, pool = target.launch_registers(count), target.register_pool(count)
    budgets: list[tuple[str, int]] = []
    for first in range(0, count * WARPGROUP_WARPS, WARPGROUP_WARPS):
        end = first + WARPGROUP_WARPS
        roles = roles_within(kernel, first, end)
        label = roles[0].label if roles else f"warps {first}..{end - 1}"
        budgets.append((label, budget_of(roles, first, end) or share))
    total = sum(registers for _, registers in budgets)
    if total > pool:
        parts = ", ".join(f"{label} {registers}" for label, registers in budgets)
        raise ResourceError(
            f"the {count} warpgroups need {total} registers per thread together, a CTA of their "
            f"size on {target.chip} gives {pool}: {parts}; lower the budget of a role",
            location=location_text(kernel.operation.location),
        )


def roles_within(kernel: ws.KernelOp, first: int, end: int) -> list[Any]:
    """The roles with a warp among `first` to `end` - 1."""
    return [r for r in kernel.roles() if r.warp_range[0] < end and sum(r.warp_range) > first]
