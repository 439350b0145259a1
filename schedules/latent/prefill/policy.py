"""The policies of latent attention before absorption: those of attention with keys of two tensors.

A row of Q or K has the columns of nope and rope. Helper warps upcast rope of 8 bits, or load scales
of keys; they need registers, and such rope a ring.
"""

from dataclasses import dataclass
from typing import ClassVar

from attn_mlir.dialect.orders import LOOPING_ORDERS
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import LINE_BYTES, Target, line_of_rows, shared_tile_bytes
from attn_mlir.element_types import NARROW, WIDE, type_bits
from attn_mlir.schedules.attention.tensor_memory.policy import (
    TENSOR_MEMORY_KNOBS,
    chosen_knobs,
    tensor_memory_domains,
)
from attn_mlir.schedules.attention.warpgroups.policy import (
    WARPGROUP_KNOBS,
    warpgroup_domains,
    warpgroup_knobs,
)
from attn_mlir.schedules.policy.base import NO_KNOBS, Call, Claims, Policy, first_mismatch
from attn_mlir.schedules.policy.facts import Facts, Rope
from attn_mlir.schedules.policy.knobs import (
    Domain,
    Knob,
    Knobs,
    Setting,
    at_least,
    multiple_of,
    one_of,
)
from attn_mlir.schedules.policy.refusal import DoesNotFit, Mismatch
from attn_mlir.schedules.policy.tiling import (
    MAX_HEAD_DIM,
    SMEM_FOR_BARRIERS,
    TILE_N,
    query_tiles_for,
    row_lines,
)

TYPES = ("bf16", "f16", "e4m3")
STEP_BYTES = 32  # depth of one product of the tensor core
ENOUGH_STAGES = 3  # K(n), V(n - 1) and what is copied meanwhile
LEAST_SLOTS = 2  # of keys and values
CLAIMED = "clc"  # the order for which a warp claims work tiles
RINGS = ("kv_stages", "rope_stages", "value_stages")
ROPE_RING_REGISTERS: dict[str, Setting] = {
    "softmax_registers": 184,
    "correction_registers": 72,
    "other_registers": 72,
}
"""If rope has a ring: the role that issues products has more descriptors, and spills with 64."""
HELPER_REGISTERS: dict[int, dict[str, Setting]] = {
    1: {
        "softmax_registers": 208,
        "correction_registers": 88,
        "other_registers": 88,
        "helper_registers": 128,
    },
    2: {"softmax_registers": 184, "correction_registers": 64, "other_registers": 80},
}
"""By query tiles; with one, the helper warps are a separate warpgroup."""


@dataclass(frozen=True)
class RingSlots:
    """The slots of the rings of keys and values.

    Attributes:
      kv: of nope and values, of whole keys and values, or of whole keys alone.
      rope: of rope; 0 if it follows nope.
      values: of values; 0 if they share the slots of keys.
    """

    kv: int
    rope: int
    values: int = 0

    @staticmethod
    def of(
        target: Target,
        sizes: tuple[int, int, int],
        *,
        whole: int,
        tile_n: int,
        staged_bytes: int,
        bits: int = 16,
        is_apart: bool = False,
    ) -> "RingSlots":
        """Two rings if they have more slots than one. A rope ring if it gives the three slots that
        overlap needs and whole keys do not, or if its shorter lines save shared memory and give
        more slots.

        Args:
          sizes: columns of nope, rope and values, of `bits` bits.
          whole: slots of whole keys that fit.
          staged_bytes: of Q and O.
          is_apart: whether rope has a ring in any case; then 0 slots of keys if none fit.
        """
        nope, rope, values = sizes
        kv_bytes, key_bytes, value_bytes = (
            shared_tile_bytes(tile_n, columns, bits)
            for columns in (max(nope, values), nope + rope, values)
        )
        line = LINE_BYTES if is_apart else line_of_rows(rope, bits)
        rope_bytes = shared_tile_bytes(tile_n, rope, bits, line)
        available = target.smem_bytes - SMEM_FOR_BARRIERS - staged_bytes
        kv = max(
            (n for n in range(2, 16) if n * kv_bytes + -(-n // 2) * rope_bytes <= available),
            default=0,
        )
        if is_apart or whole < ENOUGH_STAGES <= kv:
            return RingSlots(kv, -(-kv // 2))
        pairs = available // (key_bytes + value_bytes)
        is_shorter = shared_tile_bytes(tile_n, nope, bits) + rope_bytes < key_bytes
        if is_shorter and kv > max(whole, 2 * pairs):
            return RingSlots(kv, -(-kv // 2))
        return RingSlots(pairs, 0, pairs) if 2 * pairs > whole else RingSlots(whole, 0)


class LatentPolicy(Policy):
    """With S and O in tensor memory."""

    name: ClassVar[str] = "mla"
    operation: ClassVar[str] = "mla"
    needs: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.TENSOR_MEMORY, Feature.COPY_ENGINE, Feature.REGISTER_BUDGETS}
    )
    claims: ClassVar[Claims] = Claims(types=TYPES, key_tiles=TILE_N, scales=(1,))
    knobs: ClassVar[tuple[Knob, ...]] = (
        *TENSOR_MEMORY_KNOBS,
        Knob("rope_stages", 0, "slots of the ring of rope of keys; 0 where it lies behind nope."),
        Knob("value_stages", 0, "slots of the ring of values; 0 where they lie in slots of keys."),
        Knob(
            "helper_registers",
            0,
            "registers of a thread that widens rope of 8 bits or reads scales; 0 where one warp "
            "does, of the group of the other single warps.",
        ),
    )

    def takes(self, facts: Facts, call: Call) -> bool:
        """Any."""
        return True

    def mismatch(self, facts: Facts, target: Target) -> Mismatch | None:
        """As of every policy; rows are whole lines of nope and whole products of rope."""
        rope, bits = rope_of(facts), type_bits(facts.q_type)
        nope_step = LINE_BYTES * 8 // bits
        rope_step = STEP_BYTES * 8 // type_bits(rope.q_type)
        checks = [
            ("nope_dim", facts.head_dim, multiple_of(nope_step)),
            ("rope_dim", rope.columns, multiple_of(rope_step)),
            ("nope_dim + rope_dim", columns_of(facts), multiple_of(8, most=MAX_HEAD_DIM)),
            ("v_head_dim", facts.v_head_dim, multiple_of(128 // bits, most=MAX_HEAD_DIM)),
        ]
        return super().mismatch(facts, target) or first_mismatch(checks)

    def pins_mismatch(
        self, facts: Facts, target: Target, pins: Knobs, others: Knobs = NO_KNOBS
    ) -> Mismatch | None:
        """As of every policy, with rope behind nope or, as 8 bits always have it, in a ring."""
        ring = {**others, "rope_stages": 1}
        found = super().pins_mismatch(facts, target, pins, ring)
        is_apart = found is None or has_narrow_rope(facts)
        return found if is_apart else super().pins_mismatch(facts, target, pins, others)

    def sized(self, facts: Facts, call: Call) -> Knobs:
        """Query tiles by the number of rows; one where CTAs claim work tiles and warps help."""
        if "q_tiles" in call.asked:
            return call.asked
        count = query_tiles_for(call.target, call.sizes["sq"], facts.group)
        if has_helper(facts) and call.asked.get("tile_order") == CLAIMED:
            count = 1
        return call.asked if count is None else {**call.asked, "q_tiles": count}

    def choose(self, facts: Facts, call: Call, asked: Knobs) -> Knobs:
        """As `set`, without entries."""
        return self._chosen(facts, call.target, asked, {})

    def set(self, facts: Facts, call: Call, asked: Knobs, entries: Knobs) -> Knobs | Mismatch:
        """As of every policy; other rings and registers follow from the entries."""
        knobs = {**self._chosen(facts, call.target, asked, entries), **entries}
        domains = self.domains(facts, call.target, knobs)
        return first_mismatch((name, knobs[name], x) for name, x in domains.items()) or knobs

    def domains(self, facts: Facts, target: Target, knobs: Knobs) -> dict[str, Domain]:
        """As of attention in tensor memory; values have a ring, or rope has."""
        has_rope_ring = int(knobs["rope_stages"]) > 0
        divided = facts.head_dim if has_rope_ring else columns_of(facts)
        tile_domains = tensor_memory_domains(facts, target, knobs, divided=divided)
        if has_helper(facts) and knobs["tile_order"] == CLAIMED:
            text = f"1 for the tile_order {CLAIMED} where k_rope has 8 bits or keys have scales"
            tile_domains["q_tiles"] = Domain(text, lambda count: count == 1)
        zero_with_rope = Domain("0 beside rope_stages", lambda count: count == 0)
        return {
            **tile_domains,
            "rope_stages": at_least(0),
            "value_stages": zero_with_rope if has_rope_ring else at_least(0),
            "helper_registers": at_least(0),
        }

    def _chosen(
        self, facts: Facts, target: Target, asked: Knobs, entries: Knobs
    ) -> dict[str, Setting]:
        """The settings, including the entries."""
        knobs = self.defaults | _fitting(facts, target, asked, entries) | dict(entries)
        if has_helper(facts):
            knobs = _with_helper(facts, target, knobs, entries)
        if not has_narrow_rope(facts) and not any(x in entries for x in RINGS):
            knobs = knobs if asked.get("kv_stages") else _with_rings(facts, target, knobs, entries)
        return knobs


class LatentWarpgroupPolicy(Policy):
    """With S, P and O in the registers of warpgroups."""

    name: ClassVar[str] = "mla-registers"
    operation: ClassVar[str] = "mla"
    needs: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.WARPGROUP_PRODUCTS, Feature.COPY_ENGINE, Feature.REGISTER_BUDGETS}
    )
    knobs: ClassVar[tuple[Knob, ...]] = WARPGROUP_KNOBS

    def takes(self, facts: Facts, call: Call) -> bool:
        """Any."""
        return True

    def mismatch(self, facts: Facts, target: Target) -> Mismatch | None:
        """As with tensor memory; all operands are of 16 bits."""
        if rope_of(facts).k_type in NARROW:
            return Mismatch("k_rope of 8 bits", "left out", None)
        is_wide = ("q_nope's element type", facts.q_type, one_of(*WIDE))
        return first_mismatch([is_wide]) or LATENT.mismatch(facts, target)

    def sized(self, facts: Facts, call: Call) -> Knobs:
        """As with tensor memory."""
        return LATENT.sized(facts, call)

    def choose(self, facts: Facts, call: Call, asked: Knobs) -> Knobs:
        """The tiles that fit registers and shared memory."""
        return warpgroup_knobs(facts, call.target, asked, head_dim=columns_of(facts))

    def domains(self, facts: Facts, target: Target, knobs: Knobs) -> dict[str, Domain]:
        """As of attention in registers."""
        return warpgroup_domains(facts, target, knobs)


def rope_of(facts: Facts) -> Rope:
    """The rope of a problem that has it."""
    assert facts.rope is not None
    return facts.rope


def columns_of(facts: Facts) -> int:
    """The width of a row of queries and keys, in columns of nope's element type."""
    rope = rope_of(facts)
    return facts.head_dim + rope.columns * type_bits(rope.q_type) // type_bits(facts.q_type)


def has_narrow_rope(facts: Facts) -> bool:
    """Whether k_rope has fewer bits than the other operands."""
    return type_bits(rope_of(facts).k_type) < type_bits(facts.q_type)


def has_helper(facts: Facts) -> bool:
    """Whether helper warps upcast rope, or load scales of keys."""
    return has_narrow_rope(facts) or facts.scales is not None


def _fitting(facts: Facts, target: Target, asked: Knobs, entries: Knobs) -> dict[str, Setting]:
    """The settings of attention, with smaller tiles if only they fit and none are requested."""
    wishes = dict(asked)
    if has_helper(facts) and wishes.get("tile_order") == CLAIMED:
        wishes.setdefault("q_tiles", 1)
    smaller = {"q_tiles": 1, "tile_n": min(TILE_N)}
    free = [name for name in smaller if name not in wishes and name not in entries]
    while True:
        knobs = chosen_knobs(facts, target, wishes, head_dim=columns_of(facts)) | dict(entries)
        if not free or _has_room(facts, target, knobs):
            return knobs
        name = free.pop(0)
        wishes[name] = smaller[name]


def _with_helper(
    facts: Facts, target: Target, knobs: dict[str, Setting], entries: Knobs
) -> dict[str, Setting]:
    """The settings with registers for helper warps, and a ring for upcast rope.

    Raises:
      DoesNotFit: the tiles do not fit shared memory.
    """
    registers = HELPER_REGISTERS.get(int(knobs["q_tiles"]), {})
    if not has_narrow_rope(facts):
        return {**knobs, **registers, **entries}
    slots = _slots(facts, target, knobs, is_apart=True)
    if not _has_room(facts, target, knobs):
        reason = (
            f"two tiles of {knobs['tile_n']} keys where k_rope has 8 bits, beside "
            f"{knobs['q_tiles']} of queries, exceed shared memory"
        )
        raise DoesNotFit(reason)
    if "kv_stages" in entries:
        slots = RingSlots(int(knobs["kv_stages"]), -(-int(knobs["kv_stages"]) // 2))
    return {
        **knobs,
        **registers,
        "kv_stages": slots.kv,
        "rope_stages": slots.rope,
        **entries,
    }


def _with_rings(
    facts: Facts, target: Target, knobs: dict[str, Setting], entries: Knobs
) -> dict[str, Setting]:
    """The settings with the rings that give the most slots, of those that fit splits of Q K^T."""
    count, bits = int(knobs["num_qk_stages"]), type_bits(facts.q_type)
    columns = columns_of(facts), facts.head_dim
    whole, nope = (row_lines(n, bits) % max(count, 1) for n in columns)
    slots = _slots(facts, target, knobs, is_apart=bool(whole and not nope))
    if slots.rope and nope:
        slots = RingSlots(int(knobs["kv_stages"]), 0)
    if slots.rope and not has_helper(facts):
        knobs = {**knobs, **ROPE_RING_REGISTERS, **entries}
    return {
        **knobs,
        "kv_stages": slots.kv,
        "rope_stages": slots.rope,
        "value_stages": slots.values,
    }


def _has_room(facts: Facts, target: Target, knobs: Knobs) -> bool:
    """Whether two tiles of keys fit shared memory, with their rope of 8 bits if there is any."""
    if not has_narrow_rope(facts):
        return True
    return _slots(facts, target, knobs, is_apart=True).kv >= LEAST_SLOTS


def _slots(facts: Facts, target: Target, knobs: Knobs, *, is_apart: bool = False) -> RingSlots:
    """See `RingSlots.of`."""
    rows, bits = int(knobs["tile_m"]), type_bits(facts.q_type)
    columns = columns_of(facts)
    q = shared_tile_bytes(rows, columns, bits)
    o = shared_tile_bytes(rows, facts.v_head_dim, type_bits(facts.out_type))
    staged = q + o if knobs["tile_order"] in LOOPING_ORDERS else max(q, o)
    return RingSlots.of(
        target,
        (facts.head_dim, columns - facts.head_dim, facts.v_head_dim),
        whole=int(knobs["kv_stages"]),
        tile_n=int(knobs["tile_n"]),
        staged_bytes=int(knobs["q_tiles"]) * staged,
        bits=bits,
        is_apart=is_apart,
    )


LATENT, LATENT_WARPGROUPS = LatentPolicy(), LatentWarpgroupPolicy()
