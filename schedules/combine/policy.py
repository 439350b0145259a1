"""The policy of the kernel that combines splits of the keys: its tiles are fixed."""

from typing import ClassVar

from attn_mlir.dialect.targets.features import Feature
from attn_mlir.schedules.policy.base import Call, Claims, Policy
from attn_mlir.schedules.policy.facts import Facts


class CombinePolicy(Policy):
    """By copies and arithmetic of threads, without matrix products."""

    name: ClassVar[str] = "combine"
    operation: ClassVar[str] = "combine"
    needs: ClassVar[frozenset[Feature]] = frozenset({Feature.COPY_ENGINE})
    claims: ClassVar[Claims] = Claims(types=("f32",))

    def takes(self, facts: Facts, call: Call) -> bool:
        """Any combination."""
        return True


COMBINE = CombinePolicy()
