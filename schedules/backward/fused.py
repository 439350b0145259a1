"""From `attn.gradients` to a kernel that also adds up the gradients of queries in memory.

Keys and values stand still, as for their own gradients, and the same groups compute these. So each
score is computed once: there are five products, where separate kernels need seven.

```text
K and V of up to 192 columns together          of more
attend[0..1] --ds--> multiply --dq--> add      attend[0..1] --ds--> attend[0..1] --dq--> add
```
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients
from attn_mlir.schedules.backward.kernel import GradientConfig, GradientsSchedule, roles_of
from attn_mlir.schedules.backward.policy import GRADIENTS, GradientsPolicy
from attn_mlir.schedules.backward.query_products import ByAnotherGroup, ByAttendGroups
from attn_mlir.schedules.backward.roles import GradientStorage
from attn_mlir.schedules.backward.turns import Accumulators
from attn_mlir.schedules.registry import register


@dataclass(frozen=True)
class FusedConfig(GradientConfig):
    """As of gradients of keys and values.

    Attributes:
      multiply_registers: per thread of the group that multiplies for queries; 0 without one.
      product_stages: stages of the ring of products, if the groups that compute scores multiply.
    """

    multiply_registers: int = 0
    product_stages: int = 1


@register
class FusedGradients(GradientsSchedule):
    """Gradients of keys and values, which stand still, and sums of those of queries."""

    policy: ClassVar[GradientsPolicy] = GRADIENTS
    config: ClassVar[type[GradientConfig]] = FusedConfig

    def roles(self, gradients: Gradients, config: Any, target: Target) -> list[b.Role]:
        """Those of keys and values, and those of queries."""
        by_groups = partial(ByAttendGroups, product_stages=config.product_stages)
        by_another = config.multiply_registers > 0
        storage = GradientStorage(gradients, ByAnotherGroup if by_another else by_groups)
        assert storage.query_products is not None
        more = storage.query_products.roles(
            Accumulators(gradients.problem, gradients.dq_accum, gradients.turns),
            multiply_registers=config.multiply_registers,
            add_registers=config.other_registers,
        )
        return roles_of(gradients, config, storage, more)
