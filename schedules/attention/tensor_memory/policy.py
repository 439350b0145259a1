"""The policy of attention with S and O in tensor memory: tiles, stages and registers."""

from collections.abc import Mapping
from typing import Any, ClassVar

from attn_mlir.dialect.attn.masks import Mask
from attn_mlir.dialect.orders import LOOPING_ORDERS, TILE_ORDERS
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.element_types import type_bits
from attn_mlir.schedules.policy.attention import ManyRowsPolicy
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
from attn_mlir.schedules.policy.refusal import Mismatch
from attn_mlir.schedules.policy.tile_order import default_order
from attn_mlir.schedules.policy.tiling import (
    MAX_HEAD_DIM,
    MAX_Q_TILES,
    STAGE_COUNTS,
    TILE_N,
    Tiling,
    key_tiles_for,
    packed_heads,
    row_lines,
    tiling_for,
)

FIXED_WARPGROUPS = 2  # of correction and of all other roles, beside one for each query tile
SCORE_CHUNK_COLUMNS = 32  # of a row, that a thread weighs at a time where P is handed over in parts
NARROW_HEAD_DIM = 95  # FlashAttention-4 changes its budgets at 96
REGISTERS = ("softmax_registers", "correction_registers", "other_registers")

_BUDGETS: tuple[tuple[int, tuple[int, int, int]], ...] = (
    # (largest head size, registers of softmax, correction and others) with two query tiles: those
    # of
    # FlashAttention-4, less for correction and more for the issuing warps, which would spill
    # descriptors.
    (NARROW_HEAD_DIM, (200, 64, 48)),
    (128, (192, 72, 56)),
    (MAX_HEAD_DIM, (192, 64, 64)),
)
_BUDGET_OF_ONE_TILE = (240, 136, 128)

PRODUCT_CLOCKS = 4  # of the tensor core for 128 rows and keys, by column of Q K^T or P V in 16 bits
EXPONENTIAL_CLOCKS = 8  # of the special-function unit of a part for a warp
LONGER = 1.2  # times what exponentials take: from here on products are what a turn waits for
SPARSE_PERIOD = 32  # of exponentials then

TENSOR_MEMORY_KNOBS: tuple[Knob, ...] = (
    *attention_knobs("tile_n", "kv_stages", "exp2_period", "q_tiles", "tile_order"),
    Knob("softmax_registers", 192, "registers of a thread of softmax."),
    Knob("correction_registers", 80, "registers of a thread of correction."),
    Knob("other_registers", 48, "registers of a thread of the other roles."),
    Knob(
        "num_qk_stages",
        1,
        "parts of a tile of keys that Q K^T awaits one after the other: 1, 2 or 4, "
        "which divides the lines of 128 bytes of a row.",
        is_option=True,
    ),
    Knob(
        "num_pv_stages",
        1,
        "parts of a tile of P that P V awaits one after the other: 1, 2 or 4, of 32 columns at "
        "least.",
        is_option=True,
    ),
    Knob(
        "ordered_softmax",
        0,
        "whether the softmax groups of two query tiles weigh their scores one after the other.",
        is_option=True,
        is_flag=True,
    ),
)


class TensorMemoryPolicy(ManyRowsPolicy):
    """Many queries, with S and O in tensor memory."""

    name: ClassVar[str] = "mha"
    operation: ClassVar[str] = "mha"
    needs: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.TENSOR_MEMORY, Feature.COPY_ENGINE, Feature.REGISTER_BUDGETS}
    )
    claims: ClassVar[Claims] = Claims(
        most=(MAX_HEAD_DIM, MAX_HEAD_DIM),
        key_tiles=TILE_N,
        claims_tiles=True,
        blocks=True,
        partial=True,
    )
    knobs: ClassVar[tuple[Knob, ...]] = TENSOR_MEMORY_KNOBS

    def takes(self, facts: Facts, call: Call) -> bool:
        """Any attention."""
        return True

    def mismatch(self, facts: Facts, target: Target) -> Mismatch | None:
        """As of every policy; blocks that lists name are whole tiles."""
        rows = target.rows_per_product
        sizes = [count * rows for count in range(1, MAX_Q_TILES + 1)]
        if facts.block is not None and (
            facts.block.positions * facts.block.heads not in sizes or facts.block.keys not in TILE_N
        ):
            text = f"{one_of(*sizes).text} rows (positions x heads) and {one_of(*TILE_N).text} keys"
            return Mismatch("a block", text, " x ".join(map(str, facts.block)))
        return super().mismatch(facts, target)

    def choose(self, facts: Facts, call: Call, asked: Knobs) -> Knobs:
        """Tiles, stages and registers; the ring of keys and values takes what shared memory is
        left.
        """
        return chosen_knobs(facts, call.target, asked, head_dim=facts.head_dim)

    def domains(self, facts: Facts, target: Target, knobs: Knobs) -> dict[str, Domain]:
        """Shared and tensor memory are not checked here: the planner lists their buffers."""
        return tensor_memory_domains(facts, target, knobs, divided=facts.head_dim)

    def tiling(
        self, facts: Facts, call: Call, query_tiles: int | None, *, block_lists: bool
    ) -> Tiling:
        """The largest that shared and tensor memory have room for, whether lists name them or
        not.
        """
        return tiling_for(
            call.target,
            facts.head_dim,
            facts.v_head_dim,
            q_tiles=query_tiles,
            tile_order=_asked_order(call.asked) or "single",
            **_stored(facts),
        )


def _stored(facts: Facts) -> dict[str, Any]:
    """Arguments of `tiling_for` for operands, besides their columns."""
    return {
        "element_bits": type_bits(facts.q_type),
        "output_bits": type_bits(facts.out_type),
        "page_size": facts.page_size,
    }


def chosen_knobs(
    facts: Facts, target: Target, asked: Knobs, *, head_dim: int
) -> dict[str, Setting]:
    """The settings of a kernel whose products accumulate in tensor memory.

    Args:
      head_dim: what a row of Q and K takes, in columns of Q's element type.

    Raises:
      DoesNotFit: no tiles fit.
    """
    order = _asked_order(asked) or default_order(_mask(facts), is_ragged=facts.ragged_q)
    prescribed = None
    if facts.block is not None:
        rows = facts.block.positions * facts.block.heads
        prescribed = rows // target.rows_per_product, facts.block.keys
    knobs = default_knobs(
        target,
        head_dim,
        facts.v_head_dim,
        q_tiles=int(asked.get("q_tiles", 0)) or None,
        tile_order=order,
        prescribed=prescribed,
        **_stored(facts),
    )
    packed = 1 if facts.padded_q else packed_heads(target, facts.group)
    knobs["packed_heads"] = packed if facts.block is None else facts.block.heads
    chosen = {n: value for n, value in asked.items() if n not in ("q_tiles", "tile_order")}
    if chosen.get("exp2_period") == -1:
        chosen["exp2_period"] = 0
    return {**knobs, **chosen}


def default_knobs(
    target: Target,
    head_dim: int,
    v_head_dim: int | None = None,
    *,
    tile_order: str = "single",
    element_bits: int = 16,
    **others: Any,
) -> dict[str, Setting]:
    """Tiles, stages and registers by the sizes.

    Args:
      target: its memory and registers are the limits.
      head_dim: elements per row of Q and K.
      v_head_dim: of V and O; `head_dim` when absent.
      tile_order, element_bits, others: as in `tiling_for`.

    Raises:
      DoesNotFit: no tiles fit.
    """
    v_head_dim = head_dim if v_head_dim is None else v_head_dim
    options: dict[str, Any] = {"tile_order": tile_order, "element_bits": element_bits, **others}
    tiles = tiling_for(target, head_dim, v_head_dim, **options)
    budgets = next(budget for largest, budget in _BUDGETS if head_dim <= largest)
    if tile_order in LOOPING_ORDERS:
        budgets = _BUDGETS[-1][1]  # the loop over work tiles needs some more in the issuing warps
    budgets = budgets if tiles.q_tiles == MAX_Q_TILES else _BUDGET_OF_ONE_TILE
    polynomials = _exp2_period(head_dim, v_head_dim, tiles.q_tiles, element_bits)
    settings: dict[str, Setting] = {
        "tile_m": target.rows_per_product,
        **tiles._asdict(),
        **dict(zip(REGISTERS, budgets, strict=True)),
        "exp2_period": polynomials if Feature.PACKED_F32 in target.features else 0,
        "tile_order": tile_order,
    }
    if element_bits == 8:
        settings["rescale_threshold"] = FP8_RESCALE_THRESHOLD
    return {knob.name: knob.default for knob in TENSOR_MEMORY_KNOBS} | settings


def _exp2_period(head_dim: int, v_head_dim: int, q_tiles: int, element_bits: int) -> int:
    """The period of exponentials with 4 on the FMA units, by the clocks of the other two units.

    Up to head size 128 exponentials take the special-function unit about as long as products take
    the tensor core, and fewer polynomials make an iteration longer. Beyond, with query tiles that
    alternate, they hardly change it, and each takes 5 instructions instead of 1
    (schedules/attention/tensor_memory/README.md#exponentials).
    """
    products = (head_dim + v_head_dim) * PRODUCT_CLOCKS * element_bits // 16
    exponentials = max(TILE_N) * EXPONENTIAL_CLOCKS
    is_waited_for = q_tiles > 1 and products >= LONGER * exponentials
    return SPARSE_PERIOD if is_waited_for else 16


def tensor_memory_domains(
    facts: Facts, target: Target, knobs: Knobs, *, divided: int
) -> dict[str, Domain]:
    """The settings that such a kernel can have.

    Args:
      divided: columns of the keys that `num_qk_stages` divides.
    """
    tile_m, tile_n, q_tiles = (int(knobs[name]) for name in ("tile_m", "tile_n", "q_tiles"))
    orders = [x for x in TILE_ORDERS if x != "counter" and (x != "ragged" or facts.ragged_q)]
    pages = Domain(
        f"one that goes with pages of {facts.page_size}",
        lambda keys: keys in key_tiles_for(facts.page_size),
    )
    unordered = Domain("0 with one query tile", lambda value: value == 0)
    return {
        "tile_m": one_of(target.rows_per_product),
        "q_tiles": one_of(1, MAX_Q_TILES),
        "tile_n": pages if tile_n in TILE_N else one_of(*TILE_N),
        "kv_stages": at_least(2),
        "packed_heads": divisor_of(facts.group, tile_m),
        "tile_order": one_of(*orders),
        "exp2_period": _periods(knobs),
        "exp2_start": between(0, 3),
        "rescale_threshold": between(0, 8),
        **register_domains(target, knobs),
        "num_qk_stages": _qk_stages(knobs, divided, type_bits(facts.q_type)),
        "num_pv_stages": _pv_stages(knobs),
        "ordered_softmax": one_of(0, 1) if q_tiles > 1 else unordered,
    }


def register_domains(target: Target, knobs: Knobs) -> dict[str, Domain]:
    """Registers of a thread of each role, which together are those of a CTA."""
    low, high, step = target.least_registers, target.registers_per_thread, target.register_step
    each = multiple_of(step, least=low, most=high)
    softmax, correction, others = (int(knobs[name]) for name in REGISTERS)
    count = int(knobs["q_tiles"])
    most = target.register_pool(count + FIXED_WARPGROUPS) if count in (1, MAX_Q_TILES) else high
    left = most - count * softmax - correction
    other_registers_domain = Domain(
        f"at most {left}, as {count} x softmax_registers + correction_registers leave of {most}",
        lambda value: value <= left,
    )
    return {
        **dict.fromkeys(REGISTERS, each),
        REGISTERS[-1]: other_registers_domain if each.allows(others) else each,
    }


def _periods(knobs: Knobs) -> Domain:
    """How rare polynomials may be; with parts of P each of these has as many."""
    if int(knobs["num_pv_stages"]) > 1:
        return Domain(
            f"0 or a divisor of {SCORE_CHUNK_COLUMNS} from 4 on with num_pv_stages above 1",
            lambda period: (
                period == 0
                or (4 <= period <= SCORE_CHUNK_COLUMNS and not SCORE_CHUNK_COLUMNS % period)
            ),
        )
    return Domain("0 or 4 to 128", lambda period: period == 0 or 4 <= period <= 128)


def _qk_stages(knobs: Knobs, columns: int, bits: int) -> Domain:
    """Parts of a tile of keys: whole lines of 128 bytes."""
    lines = row_lines(columns, bits)
    if knobs["num_qk_stages"] not in STAGE_COUNTS:
        return one_of(*STAGE_COUNTS)
    return Domain(
        f"a divisor of the {lines} lines of 128 bytes of {columns} columns of keys",
        lambda count: lines % count == 0,
    )


def _pv_stages(knobs: Knobs) -> Domain:
    """Stages of a tile of P: whole chunks of the columns that a thread computes at a time."""
    if knobs["num_pv_stages"] not in STAGE_COUNTS:
        return one_of(*STAGE_COUNTS)
    columns = int(knobs["tile_n"])
    return Domain(
        f"at most {columns // SCORE_CHUNK_COLUMNS}, for parts of {SCORE_CHUNK_COLUMNS} columns of "
        f"{columns}",
        lambda count: count * SCORE_CHUNK_COLUMNS <= columns,
    )


def _asked_order(asked: Mapping[str, Setting]) -> str:
    return str(asked.get("tile_order", ""))


def _mask(facts: Facts) -> Mask:
    assert facts.mask is not None
    return facts.mask


TENSOR_MEMORY = TensorMemoryPolicy()
