"""The policy of the kernel that writes new tokens into a cache: its tiles follow from the sizes."""

from typing import ClassVar

from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.element_types import NARROW, WIDE
from attn_mlir.schedules.policy.base import Call, Claims, Policy, first_mismatch
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.knobs import one_of
from attn_mlir.schedules.policy.refusal import Mismatch


class AppendPolicy(Policy):
    """By threads alone: no product is taken."""

    name: ClassVar[str] = "append"
    operation: ClassVar[str] = "append"
    needs: ClassVar[frozenset[Feature]] = frozenset({Feature.COPY_ENGINE})
    claims: ClassVar[Claims] = Claims(kv_types=NARROW, scales=(1,))

    def takes(self, facts: Facts, call: Call) -> bool:
        """Any."""
        return True

    def mismatch(self, facts: Facts, target: Target) -> Mismatch | None:
        """As of every policy; a kernel computes scales of tokens in 16 bits."""
        checks = [("the tokens' element type", facts.q_type, one_of(*WIDE))]
        return super().mismatch(facts, target) or (
            first_mismatch(checks) if facts.scales is not None else None
        )


APPEND = AppendPolicy()
