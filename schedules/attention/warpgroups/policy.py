"""The policy of attention whose groups of threads hold S, P and O in registers.

Tiles drawn from a counter begin while the one before them ends, and the longest ones first. It
costs a place of its settings for O, hence smaller key tiles at wide heads, and a counter per
launch. On an H200 (`bench/attention.py`, 2026-11-23, 2048 // D heads, 16384 tokens) that was, in
times the speed of a CTA per tile:

| head size | full 1024 | 4096 | 16384 | causal 1024 | 4096 | 16384 |
| --- | --- | --- | --- | --- | --- | --- |
| 64 | 1.06, with three groups 1.14 | 1.04 | 0.99 | 1.23 | 1.06 | 1.02 |
| 128 | 1.06 | 1.02 | 0.98 | 1.13 | 1.06 | 1.02 |
| 256 | 0.98 | 0.97 | 0.94 | 1.09 | 1.05 | 0.95 |
"""

import contextlib
from typing import ClassVar

from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.element_types import type_bits
from attn_mlir.errors import SpecError
from attn_mlir.schedules.policy.attention import LEAST_FETCHED_TILES, LONG_KEYS, ManyRowsPolicy
from attn_mlir.schedules.policy.base import Call, Claims
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.knobs import (
    FP8_RESCALE_THRESHOLD,
    Domain,
    Knob,
    Knobs,
    Setting,
    at_least,
    attention_knobs,
    between,
    divisor_of,
    multiple_of,
    one_of,
)
from attn_mlir.schedules.policy.refusal import DoesNotFit
from attn_mlir.schedules.policy.register_tiling import (
    TRANSPOSING_REGISTERS,
    register_tiling_for,
    thread_registers,
)
from attn_mlir.schedules.policy.tile_order import default_order, grows
from attn_mlir.schedules.policy.tiling import (
    MAX_HEAD_DIM,
    MOST_GROUPS,
    TILE_N,
    Tiling,
    packed_heads,
    query_tiles_for,
)

PRODUCT_BYTES = 32  # of the columns of P that a product reads: its K
MOST_KEYS = 256  # of a tile: N of a product
ORDERS = ("single", "last_first", "persistent")
NARROW, FETCHED_SPARE = (
    96,
    1.15,
)  # columns of V up to which a third group is worth so many spare rows

WARPGROUP_KNOBS: tuple[Knob, ...] = (
    *attention_knobs(
        *("q_tiles", "tile_n", "kv_stages", "tile_order"), tile_m=64, kv_stages=2, exp2_period=0
    ),
    Knob("attend_registers", 240, "registers of a thread of the groups."),
    Knob("other_registers", 24, "registers of a thread of the warps behind them."),
)


class WarpgroupPolicy(ManyRowsPolicy):
    """Many queries, with S, P and O in the registers of the groups that issue the products."""

    name: ClassVar[str] = "mha-registers"
    suffix: ClassVar[str] = "held"
    operation: ClassVar[str] = "mha"
    needs: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.WARPGROUP_PRODUCTS, Feature.COPY_ENGINE, Feature.REGISTER_BUDGETS}
    )
    claims: ClassVar[Claims] = Claims(
        most=(MAX_HEAD_DIM, MAX_HEAD_DIM),
        key_tiles=TILE_N,
        claims_tiles=True,
        blocks=True,
        partial=True,
    )
    knobs: ClassVar[tuple[Knob, ...]] = WARPGROUP_KNOBS

    def takes(self, facts: Facts, call: Call) -> bool:
        """Any attention."""
        return True

    def choose(self, facts: Facts, call: Call, asked: Knobs) -> Knobs:
        """The tiles that registers and shared memory have room for; those of blocks that lists
        name.
        """
        if facts.block is not None:
            rows = facts.block.positions * facts.block.heads
            groups = rows // call.target.rows_per_product
            asked = {**asked, "q_tiles": groups, "tile_n": facts.block.keys}
        return warpgroup_knobs(facts, call.target, asked, head_dim=facts.head_dim)

    def domains(self, facts: Facts, target: Target, knobs: Knobs) -> dict[str, Domain]:
        """Shared memory is not checked here: the planner has the buffers and names them."""
        return warpgroup_domains(facts, target, knobs)

    def tiling(
        self, facts: Facts, call: Call, query_tiles: int | None, *, block_lists: bool
    ) -> Tiling:
        """The largest that registers and shared memory have room for."""
        return self._tiling(
            facts,
            call,
            str(call.asked.get("tile_order", "single")),
            page_size=facts.page_size,
            groups=0 if block_lists else query_tiles or 0,
            block_lists=block_lists,
        )

    def tiled(self, facts: Facts, call: Call) -> dict[str, Setting]:
        """As with many rows; and the counter that work tiles are drawn from, where it is faster."""
        knobs = super().tiled(facts, call)
        may_fetch = "tile_order" not in knobs and not call.splits
        if not may_fetch or not self._fetches_tiles(facts, call._replace(asked=knobs)):
            return knobs
        assert facts.mask is not None
        is_free = "q_tiles" not in call.asked and facts.block is None
        if is_free and facts.v_head_dim <= NARROW and not grows(facts.mask):
            count = query_tiles_for(call.target, call.sizes["sq"], facts.group, spare=FETCHED_SPARE)
            knobs = {**call.asked, **({} if count is None else {"q_tiles": count})}
        return {**knobs, "tile_order": "counter"}

    def _fetches_tiles(self, facts: Facts, call: Call) -> bool:
        """Whether work tiles are drawn from a counter: where that is faster."""
        assert facts.mask is not None
        if call.cached or facts.ragged_q:
            return False
        is_long, differ = call.sizes["sk"] > LONG_KEYS, grows(facts.mask)
        if is_long and not differ and not facts.is_fp8:
            return False
        if self.work_tiles(facts, call) < LEAST_FETCHED_TILES:
            return False
        costs = self._tiles(facts, call, "counter") != self._tiles(facts, call, "single")
        return not costs or (differ and not is_long and facts.block is None and not facts.is_fp8)

    def _tiles(self, facts: Facts, call: Call, order: str) -> tuple[int, int] | None:
        """Groups and keys of the tiles of a kernel with this order; None where it has none."""
        groups, block_lists = int(call.asked.get("q_tiles", 0)), facts.block is not None
        with contextlib.suppress(SpecError):
            return self._tiling(facts, call, order, groups=groups, block_lists=block_lists)[:2]
        return None

    @staticmethod
    def _tiling(
        facts: Facts, call: Call, order: str, *, groups: int, block_lists: bool, page_size: int = 0
    ) -> Tiling:
        return register_tiling_for(
            call.target,
            facts.head_dim,
            facts.v_head_dim,
            tile_order=order,
            element_bits=type_bits(facts.q_type),
            output_bits=type_bits(facts.out_type),
            page_size=page_size,
            groups=groups,
            block_lists=block_lists,
        )


def warpgroup_knobs(
    facts: Facts, target: Target, asked: Knobs, *, head_dim: int
) -> dict[str, Setting]:
    """The settings of a kernel whose groups hold S, P and O in registers.

    Args:
      head_dim: what a row of Q and K takes, in columns of Q's element type.

    Raises:
      DoesNotFit: no tiles fit.
    """
    assert facts.mask is not None
    order = str(asked.get("tile_order", "")) or default_order(facts.mask, is_ragged=facts.ragged_q)
    keys = int(asked.get("tile_n", 0))

    def tiles_with(transposing: int) -> Tiling:
        return register_tiling_for(
            target,
            head_dim,
            facts.v_head_dim,
            tile_order=order,
            element_bits=type_bits(facts.q_type),
            output_bits=type_bits(facts.out_type),
            page_size=facts.page_size,
            groups=int(asked.get("q_tiles", 0)),
            tile_n=keys,
            reads=facts.modifier.reads,
            gathers=facts.modifier.gathers,
            transposing=transposing,
        )

    def leaves_tiles(transposing: int) -> bool:
        with contextlib.suppress(DoesNotFit):
            return tiles_with(transposing) == tiles
        return False

    tiles, transposing = tiles_with(TRANSPOSING_REGISTERS[-1]), 0
    if facts.is_fp8:
        # where scores are modified, those that attend need more registers
        sizes = TRANSPOSING_REGISTERS[facts.modifier.reads > 0 :]
        sizes = sizes[-1:] if keys else sizes
        transposing = next(n for n in sizes if leaves_tiles(n))
    block_lists = facts.block is not None
    attending, producer_registers = thread_registers(
        target,
        tiles.q_tiles,
        order,
        facts.page_size,
        block_lists=block_lists,
        transposing=transposing,
    )
    settings: dict[str, Setting] = {
        **tiles._asdict(),
        "tile_m": target.rows_per_product,
        "packed_heads": 1 if facts.padded_q else packed_heads(target, facts.group),
        "tile_order": order,
        "attend_registers": attending,
        "other_registers": producer_registers,
    }
    if facts.is_fp8:
        settings["rescale_threshold"] = FP8_RESCALE_THRESHOLD
    if stages := asked.get("kv_stages"):
        settings["kv_stages"] = stages
    return {knob.name: knob.default for knob in WARPGROUP_KNOBS} | settings


def warpgroup_domains(facts: Facts, target: Target, knobs: Knobs) -> dict[str, Domain]:
    """The settings that such a kernel can have."""
    groups, attending = int(knobs["q_tiles"]), int(knobs["attend_registers"])
    pool = target.register_pool(groups + 1) if 0 < groups <= MOST_GROUPS else 0
    left = pool - groups * attending
    producer_domain = Domain(
        f"at most {left}, as {groups} x attend_registers leave of {pool}",
        lambda value: value <= left,
    )
    orders = (*ORDERS, *(("ragged",) if facts.ragged_q else ()))
    return {
        "tile_m": one_of(target.rows_per_product),
        "q_tiles": between(1, MOST_GROUPS),
        "tile_n": multiple_of(PRODUCT_BYTES * 8 // type_bits(facts.q_type), most=MOST_KEYS),
        "kv_stages": at_least(2),
        "exp2_period": one_of(0),
        "exp2_start": at_least(0),
        "rescale_threshold": between(0, 8),
        "packed_heads": divisor_of(facts.group, int(knobs["tile_m"])),
        "tile_order": one_of("counter") if facts.has_tile_counter else one_of(*orders),
        "attend_registers": at_least(target.least_registers),
        "other_registers": producer_domain,
    }


WARPGROUPS = WarpgroupPolicy()
