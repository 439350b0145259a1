"""From `attn.mha` to a `ws.kernel` for few queries: keys and values stream past them.

A work tile is one or two query tiles of 16 rows, those of a group's heads and of a few tokens: as many
as a product of one warp has. Warps 0-3 attend, each to a strip of every key tile, with sums in
registers, 4-7 as well where these sums are too wide for one or there are two query tiles, which share
the key tiles so; the next one merges what they have found, one stores O, one
loads. All that decoding takes is read once, so that its speed is that of memory: the ring holds as
much as shared memory has room for, and `load` goes on to the next work tile while this one is
finished. Launches overlap: a CTA sets itself up while the kernel in front of this one ends, and the
next one may begin when the last copies have been issued.

```text
load --q,kv--> attend[0..3] --maxima,totals,sums--> merge --out--> leave
```
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.attention.streaming.combine_in_kernel import JoinStorage, join
from attn_mlir.schedules.attention.streaming.policy import (
    check_config,
    chosen_order,
    refuse_other_keys,
)
from attn_mlir.schedules.attention.streaming.roles import StreamStorage, attend, merge
from attn_mlir.schedules.core.config import NARROW_BITS, Config
from attn_mlir.schedules.core.entries import CONFIG
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.kernel import attention_kernel, every_tile_with_queries
from attn_mlir.schedules.operands.storage import has_padded_queries, is_gathered, position_factors
from attn_mlir.schedules.policy.tiling import (
    MAX_HEAD_DIM,
    MAX_Q_TILES,
    MAX_SHARED_DIM,
    STREAM_KEYS,
    STREAM_ROWS,
    STREAM_SUMS,
    STREAMED,
    Slices,
    StreamedRows,
    has_scale_groups,
    stream_keys,
    streamed_stages,
)
from attn_mlir.schedules.registry import register
from attn_mlir.schedules.sources.kv_source import StreamedKV
from attn_mlir.schedules.sources.l2_prefetch import fetch_ahead
from attn_mlir.schedules.sources.listed_copies import streamed_kv
from attn_mlir.schedules.sources.transport import epilogue, load_queries, stream

WARPGROUP = 4  # warps that attend together, with registers of their own
MOST_WARPS = 3 * WARPGROUP  # where each of those that attend has so many registers
REGISTERS = {"one": (216, 72), "slices": (208, 88), "lists": (200, 104), "tiles": (192, 120)}
"""Of those that attend, and of the others, where there are three warpgroups: where one of them attends
and one puts parts together, where two attend to slices of O, also while others copy rows that lists
name (or put parts of such wide O together whose f32 lie in pairs), and where two attend to query
tiles; one warp puts their parts together."""
ELEMENT_TYPES = ("bf16", "f16", "f8E4M3FN", "f8E5M2")
HEAD_DIM_STEP_BYTES = 16  # tensor maps need strides of 16 bytes


@dataclass(frozen=True)
class StreamConfig(Config):
    """How one attention operation with few queries is computed: `Config` with other defaults.

    Attributes:
      head_tiles: query tiles of a work tile that follow one another along the heads of a group.
    """

    shares_rows: ClassVar[bool] = True
    tile_m: int = STREAM_ROWS
    q_tiles: int = 1
    tile_n: int = STREAM_KEYS
    exp2_period: int = 0
    rescale_threshold: int = 0
    tile_order: str = "persistent"
    head_tiles: int = 1

    @property
    def heads_per_cta(self) -> int:
        """Query heads that one CTA computes."""
        return self.packed_heads * self.head_tiles

    def product(self, stored: Any) -> Any:
        """f16 for elements of 8 bits: see `parts.widening`."""
        return ir.F16Type.get() if ws.element_bits(stored) == NARROW_BITS else stored


@dataclass(frozen=True)
class Options:
    """Wishes: an option other than 0 overrides what the sizes say.

    Attributes:
      q_tiles: query tiles of a work tile, 1 or 2.
      kv_stages: slots of the K/V ring; with one, copies wait for products, as products for copies.
      tile_order: one of `TILE_ORDERS` but `clc`; where none is given by the queries.
    """

    q_tiles: int = 0
    kv_stages: int = 0
    tile_order: str = ""


@register
class MhaStreaming:
    """Attention of few queries, with sums in the registers of single warps."""

    name: ClassVar[str] = STREAMED
    operation: ClassVar[type[Any]] = attn.MhaOp
    options: ClassVar[type[Any]] = Options
    needs: ClassVar[frozenset[Feature]] = frozenset({Feature.WARP_PRODUCTS, Feature.COPY_ENGINE})

    def takes(self, op: attn.MhaOp, target: Target) -> bool:
        """What no products of several warps compute on the target: 8 bits, or anything."""
        if Feature.TENSOR_MEMORY in target.features:
            return False
        narrow = ws.element_bits(op.element_type) == NARROW_BITS
        return narrow or Feature.WARPGROUP_PRODUCTS not in target.features

    def configure(self, op: attn.MhaOp, target: Target, options: Mapping[str, Any]) -> None:
        """Packs the heads of a group into a tile, and gives the ring what shared memory is left.

        Raises:
          VerifyError: an operation without a kernel, or a configuration that cannot be.
        """
        wishes = Options(**options)
        _refuse_unsupported(op)
        q_tiles = wishes.q_tiles or StreamConfig.q_tiles
        rows = _rows(op, q_tiles)
        stages = streamed_stages(
            target,
            op.head_dim,
            op.v_head_dim,
            q_tiles=q_tiles,
            packed=rows.packed,
            element_bits=ws.element_bits(op.element_type),
            stored_bits=ws.element_bits(op.stored_element_type),
            output_bits=ws.element_bits(op.output_type),
            is_joined=op.join is not None,
        )
        chosen = StreamConfig(
            tile_n=stream_keys(op.v_head_dim),
            kv_stages=wishes.kv_stages or stages,
            q_tiles=q_tiles,
            packed_heads=rows.packed,
            head_tiles=rows.head_tiles,
            tile_order=wishes.tile_order or chosen_order(op),
        )
        config = dataclasses.replace(chosen, **StreamConfig.given(op))
        _check(op, config)
        op.attributes[CONFIG] = config.to_attr()

    def build(self, function: Any, op: attn.MhaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one attention operation, which has `attn.config`.

        Raises:
          VerifyError: the function computes something else as well, the operation has no
            configuration, or its score modifier is not element-wise.
        """
        with attention_kernel(function, op, StreamConfig) as (kernel, problem, stored):
            source = streamed_kv(problem, *stored)
            kind = StreamStorage if op.join is None else JoinStorage
            storage = kind(problem, target, source.box_rows)
            has_budgets = Feature.REGISTER_BUDGETS in target.features
            b.emit_roles(_roles(problem, storage, source), has_budgets=has_budgets)
        return kernel


def _refuse_unsupported(op: attn.MhaOp) -> None:
    """Raises VerifyError for a legal `attn.mha` that the kernel does not compute."""
    element = str(op.element_type)
    if element not in ELEMENT_TYPES:
        allowed = " and ".join(ELEMENT_TYPES)
        raise op_error(op, f"has no kernel for {element} elements: supported are {allowed}")
    refuse_other_keys(op, stream_keys(op.v_head_dim))
    for name, operand, size in (("k", op.k, op.head_dim), ("v", op.v, op.v_head_dim)):
        factors = position_factors(operand)
        if factors is None:
            continue
        if ws.element_bits(op.stored_element_type) != NARROW_BITS:
            raise op_error(
                op, f"has no kernel for factors of positions of {op.stored_element_type}"
            )
        if not has_scale_groups(size, factors.groups):
            raise op_error(op, f"has no kernel for {factors.groups} factors of a row of {name}")
    step = HEAD_DIM_STEP_BYTES * 8 // ws.element_bits(op.stored_element_type)
    shared = op.shares_rows
    most = MAX_SHARED_DIM if shared else (MAX_HEAD_DIM, MAX_HEAD_DIM)
    sizes = ("head_dim", op.head_dim), ("v_head_dim", op.v_head_dim)
    for (name, size), largest in zip(sizes, most, strict=True):
        if size % step or not step <= size <= largest:
            allowed = f"multiples of {step} up to {largest}"
            raise op_error(op, f"has no kernel for {name} {size}: supported are {allowed}")
    if not shared:
        return
    if op.v_head_dim <= MAX_HEAD_DIM < op.head_dim:
        raise op_error(
            op, f"expects v_head_dim above {MAX_HEAD_DIM} as head_dim is, got {op.v_head_dim}"
        )
    if ws.element_bits(op.stored_element_type) == NARROW_BITS:
        raise op_error(op, f"has no kernel for values in the rows of {op.stored_element_type} keys")
    if is_gathered(op.k) and op.heads % STREAM_ROWS:
        raise op_error(
            op,
            f"expects heads in multiples of {STREAM_ROWS} beside rows that lists name, got {op.heads}",
        )
    slices = Slices.of(op.v_head_dim)
    if (columns := slices.warps * slices.columns) > op.head_dim:
        raise op_error(op, f"expects rows of keys of at least {columns} columns, got {op.head_dim}")


def _rows(op: attn.MhaOp, q_tiles: int) -> StreamedRows:
    """The query rows of a work tile."""
    group = op.heads // op.kv_heads
    return StreamedRows.of(
        group, q_tiles, is_padded=has_padded_queries(op.q), v_head_dim=op.v_head_dim
    )


def _check(op: attn.MhaOp, config: StreamConfig) -> None:
    """Raises VerifyError for a configuration that the kernel cannot have."""
    default = StreamConfig(tile_n=stream_keys(op.v_head_dim))
    free = ("q_tiles", "kv_stages", "packed_heads", "head_tiles", "tile_order")
    check_config(op, config, default, free, least_stages=1)  # K leaves a slot before V is awaited
    if config.q_tiles not in (1, MAX_Q_TILES):
        raise op_error(op, f"expects q_tiles of 1 or {MAX_Q_TILES}, got {config.q_tiles}")
    if config.q_tiles > 1 and Slices.of(op.v_head_dim).warps > 1:
        raise op_error(
            op, f"expects q_tiles of 1 for v_head_dim above {STREAM_SUMS}, got {config.q_tiles}"
        )
    left = op.heads // op.kv_heads // config.packed_heads
    fitting = {1, config.q_tiles} if left % config.q_tiles == 0 else {1}
    if config.head_tiles not in fitting:
        allowed = " or ".join(map(str, sorted(fitting)))
        raise op_error(op, f"expects head_tiles of {allowed}, got {config.head_tiles}")


def _roles(problem: Problem, storage: StreamStorage, source: StreamedKV) -> list[b.Role]:
    def work(body: Callable[[WorkTile, Value], None]) -> Callable[[Value], None]:
        """The work tiles of a role, from when the kernels before this one are over."""

        def run(number: Value) -> None:
            b.grid_dependency_wait()
            with every_tile_with_queries(problem) as tile:
                body(tile, number)

        return run

    def attending_as(role: int) -> Callable[[Value], None]:
        return work(lambda tile, number: attend(problem, storage, tile, role, number))

    attend_warps = storage.groups * storage.strips
    joining = storage.pieces.warps if isinstance(storage, JoinStorage) else 0
    registers, others = _registers(problem, storage, source, attend_warps, joining)
    warps = attend_warps // storage.roles
    roles = [
        b.Role(label, attending_as(role), warps=warps, groups=warps, registers=registers)
        for role in range(storage.roles)
        for label in ["attend" if role == 0 else f"attend_{role}"]
    ]
    if isinstance(storage, JoinStorage):

        def join_parts(warp: Value) -> None:
            number = warp if joining > 1 else b.constant(0)
            work(lambda tile, _: join(problem, storage, tile, number))(warp)

        own = registers if joining == WARPGROUP else others
        roles.append(b.Role("join", join_parts, warps=joining, groups=joining, registers=own))
    else:
        merge_parts = work(lambda tile, _: merge(problem, storage, tile))
        leave = work(lambda tile, _: epilogue(problem, storage.out, tile))
        roles.append(b.Role("merge", merge_parts, registers=others))
        roles.append(b.Role("leave", leave, lanes=1, registers=others))

    def load(number: Value) -> None:
        b.launch_dependents()
        if source.by_threads:
            work(lambda tile, _: load_queries(problem, storage, tile))(number)
        else:
            fetch_ahead(problem, source)
            work(lambda tile, _: stream(problem, storage, source, tile))(number)

    roles.append(b.Role("load", load, lanes=1, registers=others))
    if source.by_threads:
        gather = work(lambda tile, _: source.fill(storage, tile, lambda: None))
        left = MOST_WARPS - sum(role.warps for role in roles)
        roles.append(b.Role("gather", gather, warps=left, registers=others))
    return roles


def _registers(
    problem: Problem, storage: StreamStorage, source: StreamedKV, attending: int, joining: int
) -> tuple[int, int]:
    """Registers of those that attend, and of the others, by how many warps attend, and join parts."""
    if attending <= WARPGROUP and joining != WARPGROUP:
        return 0, 0
    if source.by_threads or (storage.has_pairs and problem.shares_rows and joining > 0):
        return REGISTERS["lists"]
    if attending == WARPGROUP:
        return REGISTERS["one"]
    return REGISTERS["tiles" if storage.q_tiles > 1 else "slices"]
