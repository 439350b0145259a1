"""From `attn.gradients` to a kernel that also adds up the gradients of queries in memory.

Keys and values stand still, as for their own gradients, and the same groups compute these. So each
score is computed once: there are five products, where separate kernels need seven.

```text
K and V of up to 192 columns together          of more
attend[0..1] --ds--> multiply --dq--> add      attend[0..1] --ds--> attend[0..1] --dq--> add
```
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients
from attn_mlir.schedules.backward.kernel import GradientConfig, gradients_kernel, roles_of
from attn_mlir.schedules.backward.policy import GRADIENTS
from attn_mlir.schedules.backward.query_sums import SumsOfAnother, SumsOfGroups, add_products
from attn_mlir.schedules.backward.roles import GradientStorage
from attn_mlir.schedules.backward.stationary import SlotOfAll
from attn_mlir.schedules.core.direction import ROWS_ARE_KEYS
from attn_mlir.schedules.kernel import over_tiles
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register


@dataclass(frozen=True)
class FusedConfig(GradientConfig):
    """As of gradients of keys and values.

    Attributes:
      multiply_registers: per thread of the group that multiplies for queries; 0 without one.
    """

    multiply_registers: int = 0


@register
class FusedGradients:
    """Gradients of keys and values, which stand still, and sums of those of queries."""

    policy: ClassVar[Policy] = GRADIENTS
    operation: ClassVar[type[Any]] = attn.GradientsOp

    def build(self, function: Any, op: attn.GradientsOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one operation, which has `attn.config`.

        Raises:
          VerifyError: as of the gradients of keys and values.
        """
        opened = gradients_kernel(function, op, ROWS_ARE_KEYS, ("dk", "dv"), FusedConfig)
        with opened as (kernel, gradients):
            config = FusedConfig.of(op)
            kind = SumsOfAnother if config.multiply_registers else SumsOfGroups
            storage = GradientStorage(gradients, kind)
            more = _roles_of_queries(gradients, config, storage)
            b.emit_roles(roles_of(gradients, config, storage, more))
        return kernel


def _roles_of_queries(
    gradients: Gradients, config: FusedConfig, storage: GradientStorage
) -> list[b.Role]:
    """The group that multiplies, if there is one, and the thread that adds."""
    problem, sums = gradients.problem, gradients.query_sums
    handed, (keys, _) = storage.query_sums, storage.stationary
    assert isinstance(handed, SumsOfAnother | SumsOfGroups) and isinstance(keys, SlotOfAll)
    add = b.Role(
        "add",
        over_tiles(problem, lambda tile, _: add_products(problem, handed, sums, tile)),
        lanes=1,
        registers=config.other_registers,
    )
    if isinstance(handed, SumsOfGroups):
        return [add]
    multiply = b.Role(
        "multiply",
        over_tiles(problem, lambda tile, _: handed.multiply(keys.ring, tile)),
        warps=WARPGROUP_WARPS,
        registers=config.multiply_registers,
    )
    return [multiply, add]
