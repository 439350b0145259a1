"""The policies of gradients in tensor memory: two groups of warps share a tile of scores."""

from collections.abc import Mapping
from typing import ClassVar

from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules.backward.policy import (
    HEADS_IN_TURN,
    GradientsPolicy,
    columns_of,
    row_columns,
)
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.knobs import (
    Domain,
    Knob,
    Knobs,
    attention_knobs,
    between,
    multiple_of,
    one_of,
)

WARPGROUPS = 3  # two that compute, and the warps behind them
MOST_HELD = 384  # columns of gradients beside two tiles of 64 columns, S and dP
MOST_COLUMNS = 128  # of a head: tiles of 128 fit beside its gradients
MOST_BESIDE_TWO = 448  # columns of both operands, of which shared memory has two smaller tiles
PARTS = 2  # of the columns of a tile of scores, each of a group


class TensorGradientsPolicy(GradientsPolicy):
    """Gradients of what stands still, which accumulate in tensor memory."""

    needs: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.TENSOR_MEMORY, Feature.COPY_ENGINE, Feature.REGISTER_BUDGETS}
    )
    most_held: ClassVar[int] = MOST_HELD
    key_parts: ClassVar[str] = "k_blocks"  # a thread has half of 64 or 128 columns
    knobs: ClassVar[tuple[Knob, ...]] = (
        *attention_knobs(q_tiles=1, kv_stages=2, exp2_period=0, rescale_threshold=0),
        HEADS_IN_TURN,
        Knob("attend_registers", 200, "registers of a thread of the groups."),
        Knob("other_registers", 104, "registers of a thread of the warps behind them."),
    )

    def for_large_heads(self, facts: Facts) -> Knobs:
        """As of every policy of gradients: smaller tiles, of the largest heads one at a time."""
        if max(row_columns(facts), facts.v_head_dim) <= MOST_COLUMNS:
            return {}
        row = columns_of(row_columns(facts)) + columns_of(facts.v_head_dim)
        return {"tile_n": 64, "kv_stages": 2 if row <= MOST_BESIDE_TWO else 1}

    def domains(self, facts: Facts, target: Target, knobs: Knobs) -> Mapping[str, Domain]:
        """Tiles of as many rows as a product has; the planner checks memory."""
        left = target.register_pool(WARPGROUPS) - PARTS * int(knobs["attend_registers"])
        step, least = target.register_step, target.least_registers
        return {
            "tile_m": one_of(target.rows_per_product),
            "q_tiles": one_of(1),
            "tile_n": one_of(64, 128),
            "kv_stages": between(1, 8),
            "attend_registers": multiple_of(step, least=least, most=target.registers_per_thread),
            "other_registers": multiple_of(step, least=least, most=left),
        }


class TensorKvGradientsPolicy(TensorGradientsPolicy):
    """Gradients of keys and values, with queries streaming past them."""

    keys_stand: ClassVar[bool] = True
    name: ClassVar[str] = "kv-gradients-tensor"
    operation: ClassVar[str] = "kv_gradients"


class TensorQGradientsPolicy(TensorGradientsPolicy):
    """Gradients of queries, with keys and values streaming past them."""

    keys_stand: ClassVar[bool] = False
    name: ClassVar[str] = "q-gradients-tensor"
    operation: ClassVar[str] = "q_gradients"


TENSOR_KV_GRADIENTS, TENSOR_Q_GRADIENTS = TensorKvGradientsPolicy(), TensorQGradientsPolicy()
