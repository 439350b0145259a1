"""The policies of gradients: groups of four warps hold those of their rows."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from attn_mlir.dialect.attn.block import Block
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.element_types import WIDE
from attn_mlir.schedules.policy.base import Call, Claims, Policy, first_mismatch
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
from attn_mlir.schedules.policy.refusal import Mismatch
from attn_mlir.schedules.policy.tile_order import grows

MOST_COLUMNS = 256  # of a head
MOST_HELD = 320  # columns of gradients: those of 64 rows lie in the registers of a group
MOST_STREAMED = 64  # rows of a tile: scores and their gradients lie there beside them
HELD_BESIDE_ALL = 256  # columns of gradients that leave registers for so many
MOST_BESIDE_TWO = 448  # columns of both operands, of which shared memory has two tiles of so many
MOST_FUSED = 128  # columns of a head, of whose gradients of queries a group has half in registers
MOST_BESIDE_A_GROUP = 192  # of K and V: two groups and a third one have registers for them
PRODUCT_COLUMNS = 16  # columns of K in shared memory are a multiple
MOST_GROUPS = 2  # that have so many registers
MOST_IN_TURN = 8  # heads whose blocks start alternately: a block has added before its successor

HEADS_IN_TURN = Knob("heads_in_turn", 1, "heads whose blocks start alternately.")


class GradientsPolicy(Policy):
    """Gradients of what stands still while the other side streams past it.

    Attributes:
      keys_stand: whether these are keys and values.
      most_held: columns of gradients that there is room for.
    """

    needs: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.WARPGROUP_PRODUCTS, Feature.COPY_ENGINE, Feature.REGISTER_BUDGETS}
    )
    claims: ClassVar[Claims] = Claims(types=WIDE, most=(MOST_COLUMNS, MOST_COLUMNS), blocks=True)
    keys_stand: ClassVar[bool]
    most_held: ClassVar[int] = MOST_HELD
    key_parts: ClassVar[str] = "k_pairs"  # PTX ISA, wgmma: a quad has 8 columns of a row
    knobs: ClassVar[tuple[Knob, ...]] = (
        *attention_knobs(
            tile_m=64, q_tiles=2, tile_n=64, kv_stages=2, exp2_period=0, rescale_threshold=0
        ),
        HEADS_IN_TURN,
        Knob("attend_registers", 224, "registers of a thread of the groups."),
        Knob("other_registers", 56, "registers of a thread of the warps behind them."),
    )

    def takes(self, facts: Facts, call: Call) -> bool:
        """Any gradients."""
        return True

    def choose(self, facts: Facts, call: Call, asked: Knobs) -> Knobs:
        """The defaults; for large heads fewer streamed rows; for blocks that lists name, tiles of
        their sizes.
        """
        asked = {**self.for_large_heads(facts), **self.order(facts), **asked}
        if facts.block is not None:
            rows, columns = self._exchanged(facts.block.positions, facts.block.keys)
            asked = {**asked, "q_tiles": rows // call.target.rows_per_product, "tile_n": columns}
        return super().choose(facts, call, asked)

    def held(self, facts: Facts) -> int:
        """Columns of gradients that a group has in registers, or a work tile in tensor memory."""
        return columns_of(row_columns(facts)) + columns_of(facts.v_head_dim) * self.keys_stand

    def for_large_heads(self, facts: Facts) -> Knobs:
        """The settings that the size of a head changes: none."""
        return {}

    def order(self, facts: Facts) -> Knobs:
        """The order in which blocks start: under a mask that grows, the blocks with the most tiles
        start first, for several heads alternately, so that no long block starts last.
        """
        is_uneven = facts.mask is not None and grows(facts.mask)
        if not (is_uneven or facts.in_turn):
            return {}
        heads = facts.kv_heads if self.keys_stand else facts.heads
        alternating = next(x for x in range(MOST_IN_TURN, 0, -1) if heads % x == 0)
        order = "single" if self.keys_stand else "last_first"
        return {"heads_in_turn": alternating, "tile_order": order}

    def block(self, facts: Facts, call: Call, *, block_lists: bool = False) -> Block:
        """As of every policy."""
        knobs = self.choose(facts, call, call.asked)
        rows, columns = (int(knobs[name]) for name in ("q_tiles", "tile_n"))
        rows = rows * call.target.rows_per_product
        positions, keys = self._exchanged(rows, columns)
        return Block(positions, facts.group if self.keys_stand else 1, keys)

    def _exchanged(self, one: int, other: int) -> tuple[int, int]:
        """Rows and columns for queries and keys, or these for those."""
        return (other, one) if self.keys_stand else (one, other)

    def mismatch(self, facts: Facts, target: Target) -> Mismatch | None:
        """As of every policy; keys have no pages."""
        if mismatch := super().mismatch(facts, target):
            return mismatch
        if self.held(facts) > self.most_held:
            name = "head_dim" if facts.rope is None else "nope_dim + rope_dim"
            columns = f"at most {self.most_held} with v_head_dim"
            return Mismatch(name, columns, row_columns(facts))
        return first_mismatch([("page_size", facts.page_size, one_of(0))])

    def domains(self, facts: Facts, target: Target, knobs: Knobs) -> Mapping[str, Domain]:
        """Tiles that registers have room for; the planner checks shared memory."""
        return {
            "q_tiles": between(1, MOST_GROUPS),
            "tile_n": multiple_of(16, most=MOST_STREAMED),
            "kv_stages": between(1, 8),
        }


class KvGradientsPolicy(GradientsPolicy):
    """Gradients of keys and values, with queries streaming past them."""

    keys_stand: ClassVar[bool] = True
    name: ClassVar[str] = "kv-gradients"
    operation: ClassVar[str] = "kv_gradients"

    def for_large_heads(self, facts: Facts) -> Knobs:
        """As of every policy of gradients: fewer scores at a time, and all registers."""
        if self.held(facts) <= HELD_BESIDE_ALL:
            return {}
        return {"tile_n": 32, "attend_registers": 232, "other_registers": 40}


class DividedKvGradientsPolicy(KvGradientsPolicy):
    """Gradients of keys and values of large heads, by a group each."""

    name: ClassVar[str] = "kv-gradients-divided"
    kernel: ClassVar[str] = "divided"
    knobs: ClassVar[tuple[Knob, ...]] = tuple(
        replace(x, default=1) if x.name == "q_tiles" else x for x in GradientsPolicy.knobs
    )

    def held(self, facts: Facts) -> int:
        """As of every policy of gradients: one of the two."""
        return columns_of(max(row_columns(facts), facts.v_head_dim))

    def domains(self, facts: Facts, target: Target, knobs: Knobs) -> Mapping[str, Domain]:
        """As of other gradients, with one tile of keys."""
        return {**super().domains(facts, target, knobs), "q_tiles": one_of(1)}


class QGradientsPolicy(GradientsPolicy):
    """Gradients of queries, with keys and values streaming past them."""

    keys_stand: ClassVar[bool] = False
    name: ClassVar[str] = "q-gradients"
    operation: ClassVar[str] = "q_gradients"

    def for_large_heads(self, facts: Facts) -> Knobs:
        """As of every policy of gradients: smaller tiles of keys."""
        row = columns_of(row_columns(facts)) + columns_of(facts.v_head_dim)
        return {"tile_n": 48} if row > MOST_BESIDE_TWO else {}


class FusedPolicy(GradientsPolicy):
    """All gradients at once: as of keys and values, and sums of those of queries in memory.

    dS of a tile goes to a group of its own that multiplies it with the keys, where registers are
    left for one. Else the groups that hold the gradients multiply, each with a line of columns.
    """

    keys_stand: ClassVar[bool] = True
    name: ClassVar[str] = "gradients"
    kernel: ClassVar[str] = "fused"
    operation: ClassVar[str] = "gradients"
    claims: ClassVar[Claims] = Claims(types=WIDE, most=(MOST_FUSED, MOST_FUSED))
    knobs: ClassVar[tuple[Knob, ...]] = (
        *GradientsPolicy.knobs,
        Knob("multiply_registers", 0, "of the group that multiplies for queries; 0 without one."),
        Knob("product_stages", 1, "tiles that wait to be added, without such a group."),
    )

    def mismatch(self, facts: Facts, target: Target) -> Mismatch | None:
        """As of other gradients; and heads for which neither is there."""
        if mismatch := super().mismatch(facts, target):
            return mismatch
        if _has_group_of_its_own(facts) or facts.head_dim > MOST_FUSED - PRODUCT_COLUMNS:
            return None
        columns = f"at most {MOST_BESIDE_A_GROUP} with v_head_dim, or above 112"
        return Mismatch("head_dim", columns, facts.head_dim)

    def choose(self, facts: Facts, call: Call, asked: Knobs) -> Knobs:
        """Registers by the columns of a head."""
        attend, multiply = (208, 72) if _has_group_of_its_own(facts) else (240, 0)
        registers = {"attend_registers": attend, "multiply_registers": multiply}
        stages = 2 if facts.in_turn and not multiply else 1  # 2: groups go on while a tile waits
        more = {"other_registers": 24, "product_stages": stages, **self.order(facts)}
        return self.defaults | registers | more | dict(asked)

    def domains(self, facts: Facts, target: Target, knobs: Knobs) -> Mapping[str, Domain]:
        """As of other gradients; queries are the rows of the product that makes dQ."""
        tiles = {"q_tiles": one_of(MOST_GROUPS), "tile_n": one_of(target.rows_per_product)}
        return {**super().domains(facts, target, knobs), **tiles}


def row_columns(facts: Facts) -> int:
    """Columns of a row of queries and keys, rope included."""
    return facts.head_dim + (0 if facts.rope is None else facts.rope.columns)


def columns_of(head_dim: int) -> int:
    """Columns of a tile in shared memory, and of a gradient."""
    return -(-head_dim // PRODUCT_COLUMNS) * PRODUCT_COLUMNS


def _has_group_of_its_own(facts: Facts) -> bool:
    """Whether registers are left for a group that multiplies for queries."""
    return facts.head_dim + facts.v_head_dim <= MOST_BESIDE_A_GROUP


class RowsPolicy(Policy):
    """Numbers of rows, by threads alone; the tiles are fixed."""

    needs: ClassVar[frozenset[Feature]] = frozenset()

    def takes(self, facts: Facts, call: Call) -> bool:
        """Any."""
        return True


class DeltaPolicy(RowsPolicy):
    """Sums along rows."""

    name: ClassVar[str] = "delta"
    kernel: ClassVar[str] = "delta"
    operation: ClassVar[str] = "delta"
    claims: ClassVar[Claims] = Claims(types=WIDE)


class SinkDeltaPolicy(DeltaPolicy):
    """Sums along rows that a sink takes a part of."""

    name: ClassVar[str] = "sink-delta"
    operation: ClassVar[str] = "sink_delta"


class SumRowsPolicy(RowsPolicy):
    """Sums of all rows."""

    name: ClassVar[str] = "sum-rows"
    kernel: ClassVar[str] = "sums"
    operation: ClassVar[str] = "sum_rows"
    claims: ClassVar[Claims] = Claims(types=("f32",))


class SumPartsPolicy(SumRowsPolicy):
    """Sums of parts."""

    name: ClassVar[str] = "sum-parts"
    kernel: ClassVar[str] = "parts"
    operation: ClassVar[str] = "sum_parts"


class ZeroRowsPolicy(RowsPolicy):
    """Zeros in the place of rows."""

    name: ClassVar[str] = "zero-rows"
    kernel: ClassVar[str] = "accumulators"
    operation: ClassVar[str] = "zero_rows"
    claims: ClassVar[Claims] = Claims(types=("f32",))


class RoundRowsPolicy(RowsPolicy):
    """Rows times a number, rounded."""

    name: ClassVar[str] = "round-rows"
    kernel: ClassVar[str] = "accumulators"
    operation: ClassVar[str] = "round_rows"
    claims: ClassVar[Claims] = Claims(types=("f32",))


ROUND_ROWS, SINK_DELTA, SUM_ROWS = RoundRowsPolicy(), SinkDeltaPolicy(), SumRowsPolicy()
SUM_PARTS, ZERO_ROWS = SumPartsPolicy(), ZeroRowsPolicy()
DELTA, GRADIENTS = DeltaPolicy(), FusedPolicy()
DIVIDED_KV_GRADIENTS = DividedKvGradientsPolicy()
KV_GRADIENTS, Q_GRADIENTS = KvGradientsPolicy(), QGradientsPolicy()
