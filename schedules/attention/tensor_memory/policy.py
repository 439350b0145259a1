"""The configuration of the `mha` schedule: how it is chosen, and which values are allowed.

It is stored on the operation as the dictionary `attn.config`, from which the schedule reads it; an
entry that is already there is kept, so a module can bring its own.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from attn_mlir.dialect import ws
from attn_mlir.dialect.attn import Block, MhaOp
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.orders import LOOPING_ORDERS, TILE_ORDERS
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.errors import SpecError
from attn_mlir.schedules.attention.tensor_memory.softmax import PIECE_COLUMNS
from attn_mlir.schedules.attention.tensor_memory.storage import Stages
from attn_mlir.schedules.core.config import NARROW_BITS, NARROW_RESCALE_THRESHOLD, Config
from attn_mlir.schedules.core.entries import CONFIG
from attn_mlir.schedules.operands.storage import (
    has_padded_queries,
    is_ragged,
    page_size_of,
    position_factors,
)
from attn_mlir.schedules.policy.tile_order import default_order
from attn_mlir.schedules.policy.tiling import (
    MAX_HEAD_DIM,
    PAGE_SIZES,
    STAGE_COUNTS,
    STREAMED,
    TILE_N,
    key_tiles_for,
    packed_heads,
    row_lines,
    tiling_for,
)

HEAD_DIM_STEP_BYTES = 16  # tensor maps need strides of 16 bytes
ELEMENT_TYPES = ("bf16", "f16", "f8E4M3FN", "f8E5M2")
FIXED_WARPGROUPS = (
    2  # warpgroups of correction and of all other roles, beside one for each query tile
)


@dataclass(frozen=True)
class MhaConfig(Config):
    """Tiles and registers of one attention operation.

    Attributes:
      softmax_registers, correction_registers, other_registers: per thread, by `setmaxnreg`;
        q_tiles x softmax + correction + other is at most what a CTA owns (`register_pool`).
      num_qk_stages: parts of a tile of keys, by columns, each with a slot and barriers of its own; Q K^T
        begins with the first one. With several, half of `kv_stages` are tiles of keys, the others values.
      num_pv_stages: parts of a tile of P, by columns, each with barriers of its own; P V begins with the first
        one.
      ordered_softmax: 1 where the softmax groups of two query tiles weigh their scores one after the other.
    """

    softmax_registers: int = 192
    correction_registers: int = 80
    other_registers: int = 48
    num_qk_stages: int = 1
    num_pv_stages: int = 1
    ordered_softmax: int = 0

    @property
    def stages(self) -> Stages:
        """The stages inside products."""
        return Stages(self.num_qk_stages, self.num_pv_stages, bool(self.ordered_softmax))


ConfigT = TypeVar("ConfigT", bound=MhaConfig)


@dataclass(frozen=True)
class Options:
    """Options of `attn-configure`; one that is neither 0 nor empty overrides the default.

    Attributes:
      tile_n: key columns per tile.
      kv_stages: slots of the K/V ring.
      exp2_period: of every this many exponentials, 4 run on the FMA units; -1 for none.
      q_tiles: query tiles per work tile; 1 suits few queries.
      tile_order: one of `TILE_ORDERS` but `counter`; by default `default_order` chooses by queries
        and mask.
      num_qk_stages: parts of a tile of keys that Q K^T awaits one after the other: 1, 2 or 4, which
        divides the lines of 128 bytes of a row.
      num_pv_stages: parts of a tile of P that P V awaits one after the other: 1, 2 or 4, of 32 columns at
        least.
      ordered_softmax: whether the softmax groups of two query tiles weigh their scores one after the other.
    """

    tile_n: int = 0
    kv_stages: int = 0
    exp2_period: int = 0
    q_tiles: int = 0
    tile_order: str = ""
    num_qk_stages: int = 0
    num_pv_stages: int = 0
    ordered_softmax: bool = False


OVERRIDING = (
    "tile_n",
    "kv_stages",
    "exp2_period",
    "num_qk_stages",
    "num_pv_stages",
    "ordered_softmax",
)  # options that are entries of the configuration
NARROW_HEAD_DIM = 95  # FlashAttention-4 changes its budgets at 96

_REGISTERS: tuple[tuple[int, tuple[int, int, int]], ...] = (
    # (largest head size, registers of softmax, correction and others) with two query tiles: those of
    # FlashAttention-4, less for correction and more for the issuing warps, which would spill descriptors.
    (NARROW_HEAD_DIM, (200, 64, 48)),
    (128, (192, 72, 56)),
    (MAX_HEAD_DIM, (192, 64, 64)),
)
_REGISTERS_OF_ONE_TILE = (240, 136, 128)

PRODUCT_CLOCKS = 4  # of the tensor core for 128 rows and keys, by column of Q K^T or P V in 16 bits
EXPONENTIAL_CLOCKS = 8  # of the special-function unit of a part for a warp
LONGER = 1.2  # times what exponentials take: from here on products are what a turn waits for
SPARSE_PERIOD = 32  # of exponentials then


def _exp2_period(head_dim: int, v_head_dim: int, q_tiles: int, element_bits: int) -> int:
    """Of how many exponentials 4 run on the FMA units, by what a key tile takes on the two other units.

    Up to head size 128 exponentials take the special-function unit about as long as products take the
    tensor core, and fewer polynomials make a turn longer. Beyond, with query tiles that take turns, they
    hardly change it, and each takes 5 instructions instead of 1 (schedules/attention/tensor_memory/README.md#exponentials).
    """
    products = (head_dim + v_head_dim) * PRODUCT_CLOCKS * element_bits // 16
    exponentials = max(TILE_N) * EXPONENTIAL_CLOCKS
    is_waited_for = q_tiles > 1 and products >= LONGER * exponentials
    return SPARSE_PERIOD if is_waited_for else Config.exp2_period


def default_config(
    target: Target,
    head_dim: int,
    v_head_dim: int | None = None,
    *,
    q_tiles: int | None = None,
    tile_order: str = "single",
    element_bits: int = 16,
    output_bits: int = 16,
    prescribed: tuple[int, int] | None = None,
    page_size: int = 0,
) -> MhaConfig:
    """Chooses tiles, stages and registers; the K/V ring takes what shared memory is left.

    Args:
      target: its memory and registers are the limits.
      head_dim: elements per row of Q and K.
      v_head_dim: of V and O; `head_dim` when absent.
      q_tiles, tile_order, element_bits, output_bits, prescribed, page_size: as in `tiling_for`.

    Raises:
      SpecError: no kernel for these head sizes.
    """
    v_head_dim = head_dim if v_head_dim is None else v_head_dim
    step = HEAD_DIM_STEP_BYTES * 8 // element_bits
    for name, size in (("head_dim", head_dim), ("v_head_dim", v_head_dim)):
        if size % step or not step <= size <= MAX_HEAD_DIM:
            above = -(-size // step) * step
            advice = f" (pad to {above}?)" if 0 < size < MAX_HEAD_DIM else ""
            raise SpecError(
                f"{name} {size} has no kernel: supported are multiples of {step} "
                f"up to {MAX_HEAD_DIM}{advice}"
            )
    tiles = tiling_for(
        target,
        head_dim,
        v_head_dim,
        q_tiles=q_tiles,
        tile_order=tile_order,
        element_bits=element_bits,
        output_bits=output_bits,
        prescribed=prescribed,
        page_size=page_size,
    )
    budgets = next(budget for largest, budget in _REGISTERS if head_dim <= largest)
    if tile_order in LOOPING_ORDERS:
        budgets = _REGISTERS[-1][1]  # the loop over work tiles needs some more in the issuing warps
    softmax, correction, other = budgets if tiles.q_tiles == 2 else _REGISTERS_OF_ONE_TILE
    is_narrow = element_bits == NARROW_BITS
    polynomials = _exp2_period(head_dim, v_head_dim, tiles.q_tiles, element_bits)
    return MhaConfig(
        tile_m=target.rows_per_product,
        **tiles._asdict(),
        softmax_registers=softmax,
        correction_registers=correction,
        other_registers=other,
        exp2_period=polynomials if Feature.PACKED_F32 in target.features else 0,
        rescale_threshold=NARROW_RESCALE_THRESHOLD if is_narrow else Config.rescale_threshold,
        tile_order=tile_order,
    )


def _check(op: Any, target: Target, config: MhaConfig, page_size: int, queries: Any) -> None:
    """Refuses a configuration that the kernel of an attention operation cannot have.

    Shared and tensor memory are not checked here: the planner does so, and lists the buffers.

    Args:
      page_size: of the pages that keys lie in, 0 without.
      queries: the operand of the operation that tells how they lie.

    Raises:
      VerifyError: with what was got and what is allowed.
    """
    if config.tile_m != target.rows_per_product:
        raise op_error(op, f"expects tile_m of {target.rows_per_product}, got {config.tile_m}")
    if config.q_tiles not in (1, 2):
        raise op_error(op, f"expects q_tiles of 1 or 2, got {config.q_tiles}")
    if config.tile_n not in TILE_N:
        allowed = " or ".join(map(str, TILE_N))
        raise op_error(op, f"expects tile_n of {allowed}, got {config.tile_n}")
    if config.tile_n not in key_tiles_for(page_size):
        raise op_error(
            op, f"expects a tile_n that goes with pages of {page_size}, got {config.tile_n}"
        )
    if config.kv_stages < 2:
        raise op_error(op, f"expects at least 2 kv_stages, got {config.kv_stages}")
    _check_stages(op, config)
    low, high, step = target.least_registers, target.registers_per_thread, target.register_step
    for field in ("softmax_registers", "correction_registers", "other_registers"):
        value = getattr(config, field)
        if value % step or not low <= value <= high:
            raise op_error(
                op, f"expects {field} to be a multiple of {step} from {low} to {high}, got {value}"
            )
    total = (
        config.q_tiles * config.softmax_registers
        + config.correction_registers
        + config.other_registers
    )
    budget = target.register_pool(config.q_tiles + FIXED_WARPGROUPS)
    if total > budget:
        raise op_error(
            op,
            f"expects {config.q_tiles} x softmax_registers + correction_registers + "
            f"other_registers of at most {budget}, got {total}",
        )
    group = op.heads // op.kv_heads
    packed = config.packed_heads
    if packed < 1 or group % packed or config.tile_m % packed:
        raise op_error(
            op, f"expects packed_heads to divide {group} and {config.tile_m}, got {packed}"
        )
    orders = [order for order in TILE_ORDERS if order != "counter"]
    if config.tile_order not in orders:
        allowed = ", ".join(orders)
        raise op_error(op, f"expects tile_order of {allowed}, got {config.tile_order}")
    if config.tile_order == "ragged" and not is_ragged(queries):
        raise op_error(op, "expects queries by attn.ragged for the tile_order ragged")
    if config.exp2_period != 0 and not 4 <= config.exp2_period <= 128:
        raise op_error(op, f"expects exp2_period of 0 or 4 to 128, got {config.exp2_period}")
    if not 0 <= config.exp2_start <= 3:
        raise op_error(op, f"expects exp2_start of 0 to 3, got {config.exp2_start}")
    if not 0 <= config.rescale_threshold <= 8:
        raise op_error(op, f"expects rescale_threshold of 0 to 8, got {config.rescale_threshold}")


def check_key_parts(op: Any, columns: int, count: int) -> None:
    """Refuses parts of a tile of keys that are no whole lines.

    Args:
      columns: of the keys that are divided.

    Raises:
      VerifyError: with what was got and what is allowed.
    """
    if (lines := row_lines(columns, ws.element_bits(op.element_type))) % count:
        raise op_error(
            op,
            f"expects num_qk_stages to divide the {lines} lines of 128 bytes of {columns} columns of "
            f"keys, got {count}",
        )


def _check_stages(op: Any, config: MhaConfig) -> None:
    """Refuses stages inside products that there are not.

    Raises:
      VerifyError: with what was got and what is allowed.
    """
    for name in ("num_qk_stages", "num_pv_stages"):
        if (count := getattr(config, name)) not in STAGE_COUNTS:
            raise op_error(op, f"expects {name} of 1, 2 or 4, got {count}")
    if config.ordered_softmax not in (0, config.q_tiles - 1):
        allowed = "0 or 1" if config.q_tiles > 1 else "0 with one query tile"
        raise op_error(op, f"expects ordered_softmax of {allowed}, got {config.ordered_softmax}")
    count = config.num_pv_stages
    if config.tile_n < count * PIECE_COLUMNS:
        raise op_error(
            op,
            f"expects num_pv_stages that leave {PIECE_COLUMNS} columns of {config.tile_n}, got {count}",
        )
    period = config.exp2_period
    if count > 1 and period and PIECE_COLUMNS % period:
        raise op_error(
            op,
            f"expects exp2_period to divide {PIECE_COLUMNS} beside num_pv_stages of {count}, got {period}",
        )


def _refuse_unsupported(op: MhaOp) -> None:
    """Raises VerifyError for a legal `attn.mha` that the kernel does not compute."""
    element = str(op.element_type)
    if element not in ELEMENT_TYPES:
        allowed = " and ".join(ELEMENT_TYPES)
        raise op_error(op, f"has no kernel for {element} elements: supported are {allowed}")
    if op.join:
        raise op_error(op, "has no kernel that puts parts of the keys together: another one does")
    if op.stored_element_type != op.element_type:
        raise op_error(
            op,
            f"has no kernel for keys of {op.stored_element_type} under queries of {element}: "
            f"{STREAMED} has",
        )
    if position_factors(op.k) is not None:
        raise op_error(op, f"has no kernel for factors of positions: {STREAMED} has")
    page_size = page_size_of(op.k)
    if not key_tiles_for(page_size):
        raise op_error(op, f"has no kernel for pages of {page_size}: supported are {PAGE_SIZES}")


def _prescribed_by(op: Any, target: Target, block: Block) -> tuple[int, int]:
    """The number of query tiles and the keys per tile that a block mask prescribes.

    Raises:
      VerifyError: no kernel has tiles of this size.
    """
    rows, tile_rows = block.positions * block.heads, target.rows_per_product
    if rows not in (tile_rows, 2 * tile_rows) or block.keys not in TILE_N:
        allowed = " or ".join(map(str, TILE_N))
        raise op_error(
            op,
            f"expects blocks of {tile_rows} or {2 * tile_rows} rows (positions x heads) and {allowed} keys, "
            f"got {block.positions} x {block.heads} and {block.keys}",
        )
    return rows // tile_rows, block.keys


def chosen_config(
    op: Any,
    target: Target,
    wishes: Options,
    *,
    queries: Any,
    page_size: int,
    block: Block | None = None,
    kind: type[ConfigT] = MhaConfig,
) -> ConfigT:
    """Tiles, stages and registers of an attention operation.

    An option overrides the table, and an entry that the operation already carries overrides both.

    Args:
      queries: the operand of the operation that tells how they lie.
      page_size: of the pages that keys lie in, 0 without.
      block: of scores that lists name; whole blocks are visited: they prescribe tiles.
      kind: of the configuration, with entries of its own at their defaults.

    Raises:
      VerifyError: an operation without a kernel, or an impossible configuration.
    """
    try:
        order = wishes.tile_order or default_order(op.mask_rule, is_ragged=is_ragged(queries))
        config = default_config(
            target,
            op.head_dim,
            op.v_head_dim,
            q_tiles=wishes.q_tiles or None,
            tile_order=order,
            element_bits=ws.element_bits(op.element_type),
            output_bits=ws.element_bits(op.output_type),
            prescribed=_prescribed_by(op, target, block) if block else None,
            page_size=page_size,
        )
    except SpecError as error:
        raise op_error(op, f"has no kernel: {error}") from error
    overrides = {name: int(getattr(wishes, name)) for name in OVERRIDING if getattr(wishes, name)}
    if wishes.exp2_period == -1:
        overrides["exp2_period"] = 0
    overrides |= kind.given(op)
    group = op.heads // op.kv_heads
    packed = 1 if has_padded_queries(queries) else packed_heads(target, group)
    packed = block.heads if block else packed
    entries: dict[str, Any] = {**dataclasses.asdict(config), "packed_heads": packed, **overrides}
    config = kind(**entries)
    _check(op, target, config, page_size, queries)
    return config


def configure(op: MhaOp, target: Target, options: Mapping[str, Any]) -> None:
    """Stores the configuration as `attn.config`; see `chosen_config`.

    Raises:
      VerifyError: an operation without a kernel, or an impossible configuration.
    """
    _refuse_unsupported(op)
    block = op.blocks.extents if op.blocks else None
    page_size, wishes = page_size_of(op.k), Options(**options)
    config = chosen_config(op, target, wishes, queries=op.q, page_size=page_size, block=block)
    check_key_parts(op, op.head_dim, config.num_qk_stages)
    op.attributes[CONFIG] = config.to_attr()
