"""The policy of `one-warp`: plain tensors of 16 bits, whose tiles are fixed."""

from typing import ClassVar

from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.element_types import WIDE
from attn_mlir.schedules.policy.base import Call, Claims, Policy, first_mismatch
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.knobs import Knob, attention_knobs, multiple_of, one_of
from attn_mlir.schedules.policy.refusal import Mismatch

MOST_COLUMNS = 128  # of a head: O lies in the registers of a warp


class OneWarpPolicy(Policy):
    """Attention that is asked for by name."""

    name: ClassVar[str] = "one-warp"
    suffix: ClassVar[str] = "one_warp"
    by_name: ClassVar[bool] = True
    operation: ClassVar[str] = "mha"
    needs: ClassVar[frozenset[Feature]] = frozenset({Feature.WARP_PRODUCTS, Feature.COPY_ENGINE})
    claims: ClassVar[Claims] = Claims(types=WIDE, most=(MOST_COLUMNS, MOST_COLUMNS))
    knobs: ClassVar[tuple[Knob, ...]] = attention_knobs(
        tile_m=16, q_tiles=1, tile_n=32, kv_stages=2, exp2_period=0, rescale_threshold=0
    )

    def takes(self, facts: Facts, call: Call) -> bool:
        """None that names no schedule."""
        return False

    def mismatch(self, facts: Facts, target: Target) -> Mismatch | None:
        """As of every policy; heads are whole products of 16 columns, and keys have no pages."""
        whole = multiple_of(16, most=MOST_COLUMNS)
        return super().mismatch(facts, target) or first_mismatch(
            [
                ("head_dim", facts.head_dim, whole),
                ("v_head_dim", facts.v_head_dim, whole),
                ("page_size", facts.page_size, one_of(0)),
            ]
        )


ONE_WARP = OneWarpPolicy()
