"""From `attn.mha` to a `ws.kernel` whose groups of threads hold S, P and O in registers.

A work tile is 128 or 192 query rows of one head, 64 for each group of four warps, which attends by
itself; behind the groups one warp stores O and one loads.

```text
load --q,k,v--> attend[0..2] --out--> leave
```
With operands of 8 bits two more warps transpose values between `load` and `attend`.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS, Target
from attn_mlir.errors import SpecError
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.attention.warpgroups.roles import HeldStorage, attend
from attn_mlir.schedules.attention.warpgroups.values import TRANSPOSING_WARPS, TransposedValues
from attn_mlir.schedules.core.config import IN_TURN, NARROW_BITS, NARROW_RESCALE_THRESHOLD, Config
from attn_mlir.schedules.core.entries import CONFIG
from attn_mlir.schedules.core.modifier import Modifier
from attn_mlir.schedules.core.problem import PRODUCT_BYTES, Problem, Value, WorkTile
from attn_mlir.schedules.kernel import (
    attention_kernel,
    every_tile,
    every_tile_with_queries,
    when_it_has_queries,
)
from attn_mlir.schedules.operands.storage import has_padded_queries, is_ragged, page_size_of
from attn_mlir.schedules.policy.held_tiling import (
    OTHERS_THAT_TRANSPOSE,
    held_registers,
    held_tiling_for,
)
from attn_mlir.schedules.policy.tile_order import default_order
from attn_mlir.schedules.policy.tiling import HELD, MAX_HEAD_DIM, Tiling, packed_heads
from attn_mlir.schedules.registry import register
from attn_mlir.schedules.sources.kv_source import KVSource, copied_kv
from attn_mlir.schedules.sources.transport import epilogue, load

CACHED_IN_TURN = 8  # scores that a thread modifies at a time by elements that many scores share
ELEMENT_TYPES = ("bf16", "f16", "f8E4M3FN", "f8E5M2")


@dataclass(frozen=True)
class HeldConfig(Config):
    """How one attention operation is computed; `q_tiles` are the groups.

    Attributes:
      attend_registers, other_registers: per thread of the groups, and of the warps behind them.
    """

    tile_m: int = 64
    kv_stages: int = 2
    exp2_period: int = 0
    attend_registers: int = 240
    other_registers: int = 24

    def in_turn(self, modifier: Modifier, element_bits: int) -> int:
        """Beside S, P and O no thread has registers for what a modifier makes of coordinates for all scores
        of a tile, or a predicate of what it reads, and with 8 bits, whose sums take more, none for what any
        predicate does. What many scores share, tables of distances and what predicates read, comes from the
        nearest cache: then fewer are enough."""
        if element_bits != NARROW_BITS and not (modifier.changes or modifier.reads):
            return 0
        shares = modifier.gathers or (modifier.hides and not modifier.readings)
        return CACHED_IN_TURN if shares else IN_TURN


@dataclass(frozen=True)
class Options:
    """Wishes: an option other than 0 overrides what the sizes say.

    Attributes:
      q_tiles: groups of four warps with 64 query rows each, 1 to 3.
      tile_n: key columns per tile.
      kv_stages: slots of each of the rings of K and V.
      tile_order: one of `TILE_ORDERS` but `clc`; where none is given by queries and mask. `counter`
        is for operations with an `attn.tile_counter`.
    """

    q_tiles: int = 0
    tile_n: int = 0
    kv_stages: int = 0
    tile_order: str = ""


@register
class MhaRegisters:
    """Attention with S, P and O in the registers of the groups that issue the products."""

    name: ClassVar[str] = HELD
    operation: ClassVar[type[Any]] = attn.MhaOp
    options: ClassVar[type[Any]] = Options
    needs: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.WARPGROUP_PRODUCTS, Feature.COPY_ENGINE, Feature.REGISTER_BUDGETS}
    )

    def takes(self, op: attn.MhaOp, target: Target) -> bool:
        """Any attention whose operands have one type of 16 or 8 bits."""
        return str(op.element_type) in ELEMENT_TYPES

    def configure(self, op: attn.MhaOp, target: Target, options: Mapping[str, Any]) -> None:
        """Takes the tiles that registers and shared memory have room for.

        Raises:
          VerifyError: an operation without a kernel, or a configuration that cannot be.
        """
        _refuse_unsupported(op)
        page_size, wishes = page_size_of(op.k), Options(**options)
        if op.blocks is not None:
            positions, heads, keys = op.blocks.extents
            groups = positions * heads // target.rows_per_product
            wishes = dataclasses.replace(wishes, q_tiles=groups, tile_n=keys)
        modifier = Modifier(op, {})
        config = chosen_config(
            op,
            target,
            wishes,
            queries=op.q,
            page_size=page_size,
            reads=modifier.reads,
            gathers=modifier.gathers,
            listed=op.blocks is not None,
            counted=op.tile_counter is not None,
        )
        op.attributes[CONFIG] = config.to_attr()

    def build(self, function: Any, op: attn.MhaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one attention operation, which has `attn.config`.

        Raises:
          VerifyError: the function computes something else as well, the operation has no
            configuration, or its score modifier is not element-wise.
        """
        with attention_kernel(function, op, HeldConfig) as (kernel, problem, stored):
            source = copied_kv(problem, *stored)
            config = HeldConfig.of(op)
            b.emit_roles(roles_of(problem, config, HeldStorage(problem), source))
        return kernel


def chosen_config(
    op: Any,
    target: Target,
    wishes: Options,
    *,
    queries: Any,
    page_size: int,
    reads: int = 0,
    gathers: bool = False,
    listed: bool = False,
    counted: bool = False,
) -> HeldConfig:
    """The tiles of an attention operation that registers and shared memory have room for.

    An option overrides them, and an entry that the operation already carries overrides both.

    Args:
      queries: the operand of the operation that tells how they lie.
      page_size: of the pages that keys lie in, 0 without.
      reads: how many elements of tensors each score needs.
      gathers: whether these lie at distances of query and key.
      listed: whether lists name the key tiles.
      counted: whether work tiles are drawn from a counter.

    Raises:
      VerifyError: an operation without a kernel, or an impossible configuration.
    """
    order = wishes.tile_order or default_order(op.mask_rule, is_ragged=is_ragged(queries))
    bits = ws.element_bits(op.element_type)
    is_narrow = bits == NARROW_BITS

    def tiles_with(transposing: int) -> Tiling:
        return held_tiling_for(
            target,
            op.head_dim,
            op.v_head_dim,
            tile_order=order,
            element_bits=bits,
            output_bits=ws.element_bits(op.output_type),
            page_size=page_size,
            groups=wishes.q_tiles,
            tile_n=wishes.tile_n,
            reads=reads,
            gathers=gathers,
            transposing=transposing,
        )

    def leaves_tiles(transposing: int) -> bool:
        with contextlib.suppress(SpecError):
            return tiles_with(transposing) == tiles
        return False

    try:
        tiles = tiles_with(OTHERS_THAT_TRANSPOSE[-1])
    except SpecError as error:
        raise op_error(op, f"has no kernel: {error}") from error
    transposing = 0
    if is_narrow:
        # where scores are modified, those that attend need more registers
        sizes = OTHERS_THAT_TRANSPOSE[bool(reads) :]
        sizes = sizes[-1:] if wishes.tile_n else sizes
        transposing = next(n for n in sizes if leaves_tiles(n))
    attending, others = held_registers(
        target, tiles.q_tiles, order, page_size, listed=listed, transposing=transposing
    )
    group = op.heads // op.kv_heads
    chosen = HeldConfig(
        tile_m=target.rows_per_product,
        q_tiles=tiles.q_tiles,
        tile_n=tiles.tile_n,
        kv_stages=wishes.kv_stages or tiles.kv_stages,
        packed_heads=1 if has_padded_queries(queries) else packed_heads(target, group),
        tile_order=order,
        attend_registers=attending,
        other_registers=others,
        **({"rescale_threshold": NARROW_RESCALE_THRESHOLD} if is_narrow else {}),
    )
    config = dataclasses.replace(chosen, **HeldConfig.given(op))
    _check(op, config, target, queries, counted=counted)
    return config


def _refuse_unsupported(op: attn.MhaOp) -> None:
    """Raises VerifyError for a legal `attn.mha` that the kernel does not compute."""
    element = str(op.element_type)
    if element not in ELEMENT_TYPES:
        allowed = " and ".join(ELEMENT_TYPES)
        raise op_error(op, f"has no kernel for {element} elements: supported are {allowed}")
    for name, size in (("head_dim", op.head_dim), ("v_head_dim", op.v_head_dim)):
        if size % 8 or not 8 <= size <= MAX_HEAD_DIM:
            allowed = f"multiples of 8 up to {MAX_HEAD_DIM}"
            raise op_error(op, f"has no kernel for {name} {size}: supported are {allowed}")


def _check(op: Any, config: HeldConfig, target: Target, queries: Any, *, counted: bool) -> None:
    """Raises VerifyError for a configuration that the kernel cannot have.

    Shared memory is not checked here: the planner has the buffers and names them.
    """
    if config.tile_m != target.rows_per_product:
        rows = target.rows_per_product
        raise op_error(op, f"expects tile_m of {rows}, that of a product, got {config.tile_m}")
    if config.q_tiles not in (1, 2, 3):
        raise op_error(op, f"expects q_tiles of 1 to 3, got {config.q_tiles}")
    step = PRODUCT_BYTES * 8 // ws.element_bits(op.element_type)
    if config.tile_n % step or not step <= config.tile_n <= 256:
        raise op_error(op, f"expects tile_n in multiples of {step} up to 256, got {config.tile_n}")
    if config.kv_stages < 2:
        raise op_error(op, f"expects at least 2 kv_stages, got {config.kv_stages}")
    if config.exp2_period:
        raise op_error(op, f"expects exp2_period of 0, got {config.exp2_period}")
    if not 0 <= config.rescale_threshold <= 8:
        raise op_error(op, f"expects rescale_threshold of 0 to 8, got {config.rescale_threshold}")
    group, packed = op.heads // op.kv_heads, config.packed_heads
    if packed < 1 or group % packed or config.tile_m % packed:
        raise op_error(
            op, f"expects packed_heads to divide {group} and {config.tile_m}, got {packed}"
        )
    allowed = ["single", "last_first", "persistent", *(["ragged"] if is_ragged(queries) else [])]
    if counted:
        allowed = ["counter"]
    if config.tile_order not in allowed:
        names = ", ".join(allowed)
        raise op_error(op, f"expects tile_order of {names}, got {config.tile_order}")
    wanted = config.q_tiles * config.attend_registers + config.other_registers
    pool = target.register_pool(config.q_tiles + 1)
    if wanted > pool:
        raise op_error(
            op,
            f"expects q_tiles x attend_registers + other_registers of at most {pool}, got {wanted}",
        )


def roles_of(
    problem: Problem, config: HeldConfig, storage: HeldStorage, source: KVSource
) -> list[b.Role]:
    """The roles of a kernel whose groups hold S, P and O in registers."""
    answers, values = storage.answers, storage.values
    groups, others = config.q_tiles, config.other_registers

    def work(body: Callable[[WorkTile, Value], None]) -> Callable[[Value], None]:
        """A role's loop over work tiles around the code for one of them."""

        def run(way: Value) -> None:
            with every_tile_with_queries(problem, answers) as tile:
                body(tile, way)

        return run

    def load_and_draw(_: Value) -> None:
        with every_tile(problem, answers) as tile:
            with when_it_has_queries(problem, tile):
                load(problem, storage, source, tile)
            if answers is not None:
                b.draw(answers, problem.tile_counter)

    roles = [
        b.Role(
            "attend",
            work(lambda tile, way: attend(problem, storage, tile, way)),
            warps=groups * WARPGROUP_WARPS,
            groups=groups,
            registers=config.attend_registers,
        ),
        b.Role(
            "leave",
            work(lambda tile, _: epilogue(problem, storage.out, tile)),
            lanes=1,
            registers=others,
        ),
        b.Role("load", load_and_draw, lanes=1, registers=others),
    ]
    if isinstance(values, TransposedValues):
        transpose = work(lambda tile, _: values.transpose(problem, tile, others))
        roles.append(b.Role("transpose", transpose, warps=TRANSPOSING_WARPS, registers=others))
    return roles
