"""The roles of a kernel as a list, whose warps one function numbers.

```text
Role("softmax", ..., warps=8, groups=2)   warps 0-7
Role("mma", ..., lanes=1)                 warp 8
Role("load", ..., lanes=1)                warp 9
```
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS

from .kernels import role

Value = Any


@dataclass(frozen=True)
class Role:
    """A role of a kernel.

    Attributes:
      label: its name.
      run: emits the role's body, given the number of a thread's group, i32.
      warps: how many it has.
      lanes: threads of each warp that run the body, 1 or 32.
      registers: of each thread; 0 for those that the launch gives. Roles of one warpgroup have
        equally many, and all together at most what a CTA has, as `passes.check_registers` makes
        sure.
      groups: that the warps are divided into.
      ranks: of the CTAs of a cluster that have the role; None for all.
      begins_warpgroup: whether its first warp begins a warpgroup, even if that leaves warps unused.
    """

    label: str
    run: Callable[[Value], None]
    _: KW_ONLY
    warps: int = 1
    lanes: int = 32
    registers: int = 0
    groups: int = 1
    ranks: Sequence[int] | None = None
    begins_warpgroup: bool = False


def emit_roles(roles: Iterable[Role], *, has_budgets: bool = True) -> None:
    """Emits roles at the insertion point, each in the warps after those of the role before it.

    Args:
      has_budgets: whether roles have registers of their own; else all warps have equally many.
    """
    first = 0
    for one in roles:
        if one.begins_warpgroup:
            first = -(-first // WARPGROUP_WARPS) * WARPGROUP_WARPS
        with role(
            one.label,
            first=first,
            warps=one.warps,
            registers=one.registers if has_budgets else 0,
            groups=one.groups,
            lanes=one.lanes,
            ranks=one.ranks,
        ) as number:
            one.run(number)
        first += one.warps
