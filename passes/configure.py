"""`attn-configure`: chooses how each attention operation is computed on SM100.

The choice is a table, by head size and mask, and it lands on the operation as a dictionary
`attn.config` that the schedule reads; an entry that is already there wins, so a module can carry
its own. Numbers: the kernel's specification, sections 2.4 and 2.5.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn import (
    Block,
    LimitedOp,
    MhaOp,
    ScaledOp,
    logical_type,
    stored_type,
)
from attn_mlir.dialect.orders import LOOPING_ORDERS, TILE_ORDERS
from attn_mlir.errors import SpecError
from attn_mlir.passes.infrastructure.diagnostics import op_error
from attn_mlir.passes.infrastructure.registry import register
from attn_mlir.passes.target.limits import TARGETS, WARP_THREADS, WARPGROUP_WARPS
from attn_mlir.passes.target.tile_order import default_order
from attn_mlir.passes.target.tiling import MAX_HEAD_DIM, TILE_M, TILE_N, packed_heads, tiling_for

CONFIG = "attn.config"  # attribute of attn.mha that holds a Config

HEAD_DIM_STEP_BYTES = 16  # tensor maps need strides of 16 bytes
ELEMENT_TYPES = ("bf16", "f16", "f8E4M3FN", "f8E5M2")
NARROW_BITS = 8
NARROW_RESCALE_THRESHOLD = 2  # of 8-bit P, see `Config`
REGISTER_STEP = 8  # setmaxnreg takes multiples of 8; PTX ISA, setmaxnreg
REGISTER_RANGE = (24, 256)  # PTX ISA, setmaxnreg
FIXED_WARPGROUPS = 2  # correction and others, beside one for each query tile


@dataclass(frozen=True)
class Config:
    """How one attention operation is computed.

    Attributes:
      tile_m: query rows per tile: the M of one `tcgen05.mma`.
      q_tiles: query tiles per CTA, one softmax warpgroup each.
      tile_n: key columns per tile.
      kv_stages: slots of the ring that K and V tiles share.
      softmax_registers, correction_registers, other_registers: per thread, by `setmaxnreg`;
        q_tiles x softmax + correction + other is at most `register_budget(q_tiles)`.
      exp2_period: of this many elements, 4 exponentials run as polynomials on the FMA units;
        0 for none.
      exp2_start: first of the four 32-column fragments of a row that has any; the last has none.
      rescale_threshold: the running maximum is kept until a new one exceeds it by this much, in
        units of log2. Every probability stays below 2^8: those of 16 bits begin at 1, those of 8
        bits at 2^(8 - threshold), so that small ones are not lost.
      packed_heads: query heads of one group whose rows share a query tile.
      tile_order: of `ws.tiles`.
    """

    tile_m: int = 128
    q_tiles: int = 2
    tile_n: int = 128
    kv_stages: int = 5
    softmax_registers: int = 192
    correction_registers: int = 80
    other_registers: int = 48
    exp2_period: int = 16
    exp2_start: int = 1
    rescale_threshold: int = 8
    packed_heads: int = 1
    tile_order: str = "single"

    @property
    def rows_per_cta(self) -> int:
        """Query rows that one CTA computes."""
        return self.tile_m * self.q_tiles

    def to_attr(self) -> ir.DictAttr:
        """Returns the dictionary of 32-bit integers, in the current context."""
        i32 = ir.IntegerType.get_signless(32)
        fields = dataclasses.asdict(self)
        return ir.DictAttr.get(
            {
                name: ir.StringAttr.get(value)
                if isinstance(value, str)
                else ir.IntegerAttr.get(i32, value)
                for name, value in fields.items()
            }
        )

    @classmethod
    def of(cls, op: Any) -> "Config":
        """Reads the configuration of an operation.

        Raises:
          VerifyError: there is none, or it is not made of known integer entries.
        """
        if CONFIG not in op.attributes:
            raise op_error(op, f"has no '{CONFIG}': run attn-configure first")
        return cls(**_entries(op))


NARROW_HEAD_DIM = 95  # FlashAttention-4 changes its budgets at 96

_REGISTERS: tuple[tuple[int, tuple[int, int, int]], ...] = (
    # largest head size: softmax, correction, others, with two query tiles. FlashAttention-4's,
    # less for correction and more for the issuing warps, whose descriptors spill otherwise.
    (NARROW_HEAD_DIM, (200, 64, 48)),
    (128, (192, 72, 56)),
    (MAX_HEAD_DIM, (192, 64, 64)),
)
_REGISTERS_OF_ONE_TILE = (240, 136, 128)


def register_budget(q_tiles: int) -> int:
    """What `setmaxnreg` can hand out: registers per thread, summed over the warpgroups of a CTA.

    A CTA owns what it is launched with, whole eights for each thread, and not the rest of the
    register file: 4 x 128 with two query tiles, 3 x 168 with one. A kernel that asks for more hangs
    (measured on an H200, validation/differential/roles.py).
    """
    groups = q_tiles + FIXED_WARPGROUPS
    threads = groups * WARPGROUP_WARPS * WARP_THREADS
    return TARGETS["sm_100a"].registers // threads // REGISTER_STEP * REGISTER_STEP * groups


def _entries(op: Any) -> dict[str, Any]:
    """Reads what `attn.config` says, entry by entry.

    Raises:
      VerifyError: it is no dictionary, or an entry is unknown or of another kind.
    """
    attr = op.attributes[CONFIG]
    if not isinstance(attr, ir.DictAttr):
        raise op_error(op, f"expects '{CONFIG}' to be a dictionary, got {attr}")
    kinds: dict[str, type] = {
        f.name: str if f.type is str else int for f in dataclasses.fields(Config)
    }
    entries: dict[str, Any] = {}
    for index in range(len(attr)):
        named = attr[index]
        if named.name not in kinds:
            known = ", ".join(kinds)
            raise op_error(op, f"has unknown entry '{named.name}' in '{CONFIG}': known are {known}")
        kind = ir.StringAttr if kinds[named.name] is str else ir.IntegerAttr
        if not isinstance(named.attr, kind):
            word = "a string" if kind is ir.StringAttr else "an integer"
            raise op_error(op, f"expects {named.name} to be {word}, got {named.attr}")
        entries[named.name] = named.attr.value
    return entries


def default_config(
    head_dim: int,
    v_head_dim: int | None = None,
    *,
    q_tiles: int = 2,
    tile_order: str = "single",
    element_bits: int = 16,
    output_bits: int = 16,
    tile: tuple[int, int] | None = None,
) -> Config:
    """Chooses tiles, stages and registers; the K/V ring takes what shared memory is left.

    Args:
      head_dim: elements per row of Q and K.
      v_head_dim: of V and O; `head_dim` when absent.
      q_tiles, tile_order, element_bits, output_bits, tile: as of `tiling_for`.

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
        head_dim,
        v_head_dim,
        q_tiles=q_tiles,
        tile_order=tile_order,
        element_bits=element_bits,
        output_bits=output_bits,
        tile=tile,
    )
    budgets = next(budget for largest, budget in _REGISTERS if head_dim <= largest)
    if tile_order in LOOPING_ORDERS:
        budgets = _REGISTERS[-1][1]  # the tile loop takes some more of the issuing warps
    softmax, correction, other = budgets if tiles.q_tiles == 2 else _REGISTERS_OF_ONE_TILE
    is_narrow = element_bits == NARROW_BITS
    return Config(
        tile_m=TILE_M,
        **tiles._asdict(),
        softmax_registers=softmax,
        correction_registers=correction,
        other_registers=other,
        rescale_threshold=NARROW_RESCALE_THRESHOLD if is_narrow else Config.rescale_threshold,
        tile_order=tile_order,
    )


def _check(op: Any, config: Config) -> None:
    """Refuses a configuration that no SM100 kernel can have.

    Shared and tensor memory are not checked here: the planner has the buffers and names them.

    Raises:
      VerifyError: with what was got and what is allowed.
    """
    if config.tile_m != TILE_M:
        raise op_error(op, f"expects tile_m of {TILE_M}, got {config.tile_m}")
    if config.q_tiles not in (1, 2):
        raise op_error(op, f"expects q_tiles of 1 or 2, got {config.q_tiles}")
    if config.tile_n not in TILE_N:
        allowed = " or ".join(map(str, TILE_N))
        raise op_error(op, f"expects tile_n of {allowed}, got {config.tile_n}")
    if config.kv_stages < 2:
        raise op_error(op, f"expects at least 2 kv_stages, got {config.kv_stages}")
    low, high = REGISTER_RANGE
    for field in ("softmax_registers", "correction_registers", "other_registers"):
        value = getattr(config, field)
        if value % REGISTER_STEP or not low <= value <= high:
            raise op_error(
                op, f"expects {field} to be a multiple of 8 from {low} to {high}, got {value}"
            )
    total = (
        config.q_tiles * config.softmax_registers
        + config.correction_registers
        + config.other_registers
    )
    budget = register_budget(config.q_tiles)
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
    if config.tile_order not in TILE_ORDERS:
        allowed = ", ".join(TILE_ORDERS)
        raise op_error(op, f"expects tile_order of {allowed}, got {config.tile_order}")
    if config.tile_order == "ragged" and not _is_ragged(op):
        raise op_error(op, "expects queries by attn.ragged for the tile_order ragged")
    if config.exp2_period != 0 and not 4 <= config.exp2_period <= 128:
        raise op_error(op, f"expects exp2_period of 0 or 4 to 128, got {config.exp2_period}")
    if not 0 <= config.exp2_start <= 3:
        raise op_error(op, f"expects exp2_start of 0 to 3, got {config.exp2_start}")
    if not 0 <= config.rescale_threshold <= 8:
        raise op_error(op, f"expects rescale_threshold of 0 to 8, got {config.rescale_threshold}")


def _is_ragged(op: MhaOp) -> bool:
    """Whether the queries of all sequences lie in one dimension."""
    return stored_type(op.q).rank < logical_type(op.q).rank


def _has_padded_queries(op: MhaOp) -> bool:
    """Whether the queries of a sequence end before its dimension does.

    A tensor map of those has a dimension for that, and none is left for packed heads.
    """
    owner = op.q.owner
    while isinstance(owner, ScaledOp):
        owner = owner.source.owner
    return isinstance(owner, LimitedOp) and not _is_ragged(op)


def _refuse_unsupported(op: MhaOp) -> None:
    """Raises VerifyError for a legal `attn.mha` that the SM100 kernel does not compute."""
    element = str(op.element_type)
    if element not in ELEMENT_TYPES:
        allowed = " and ".join(ELEMENT_TYPES)
        raise op_error(op, f"has no kernel for {element} elements: supported are {allowed}")


def _tile_of(op: MhaOp, block: Block) -> tuple[int, int]:
    """Query tiles and keys per tile of a kernel whose work tiles are blocks.

    Raises:
      VerifyError: there is no such kernel.
    """
    rows = block.positions * block.heads
    if rows not in (TILE_M, 2 * TILE_M) or block.keys not in TILE_N:
        keys = " or ".join(map(str, TILE_N))
        raise op_error(
            op,
            f"expects blocks of {TILE_M} or {2 * TILE_M} rows (positions x heads) and {keys} keys, "
            f"got {block.positions} x {block.heads} and {block.keys}",
        )
    return rows // TILE_M, block.keys


@register
@dataclass(frozen=True)
class Configure:
    """Chooses tiles, stages and registers of every `attn.mha` and stores them as `attn.config`.

    An option other than 0 overrides the table, and an entry that the operation already carries
    overrides both.

    Attributes:
      tile_n: key columns per tile.
      kv_stages: slots of the K/V ring.
      exp2_period: of this many elements, 4 exponentials run on the FMA units; -1 for none.
      q_tiles: query tiles per work tile; 1 suits few queries.
      tile_order: one of `TILE_ORDERS`; where none is given by queries and mask (`default_order`).
    """

    name: ClassVar[str] = "attn-configure"
    tile_n: int = 0
    kv_stages: int = 0
    exp2_period: int = 0
    q_tiles: int = 0
    tile_order: str = ""

    def run(self, module: Any) -> None:
        """Adds `attn.config` to each operation.

        Raises:
          VerifyError: an operation without a kernel, or a configuration that cannot be.
        """
        for op in ir.get_ops_of_type(module, MhaOp):
            self._configure(op)

    def _configure(self, op: MhaOp) -> None:
        _refuse_unsupported(op)
        block = op.blocks.extents if op.blocks else None  # whole ones are walked, so they decide
        try:
            order = self.tile_order or default_order(op.mask_rule, is_ragged=_is_ragged(op))
            config = default_config(
                op.head_dim,
                op.v_head_dim,
                q_tiles=self.q_tiles or 2,
                tile_order=order,
                element_bits=ws.element_bits(op.element_type),
                output_bits=ws.element_bits(op.output_type),
                tile=_tile_of(op, block) if block else None,
            )
        except SpecError as error:
            raise op_error(op, f"has no kernel: {error}") from error
        overrides = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("q_tiles", "tile_order") and getattr(self, field.name)
        }
        if self.exp2_period == -1:
            overrides["exp2_period"] = 0
        if CONFIG in op.attributes:
            overrides |= _entries(op)
        group = op.heads // op.kv_heads
        packed = 1 if _has_padded_queries(op) else packed_heads(group)
        packed = block.heads if block else packed
        config = dataclasses.replace(config, **{"packed_heads": packed, **overrides})
        _check(op, config)
        op.attributes[CONFIG] = config.to_attr()
