"""From `attn.mha` to a `ws.kernel` for few queries whose products have keys in their rows.

A work tile is 8, 16 or 32 query rows, those of a group's heads and of a few tokens, which are the
columns of a product. Warps 0-3 attend, one thread for each key of a tile; 4 issues the products, 5
stores O, 6 loads. See `parts.swapped`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.attention.keys_in_rows.roles import SwappedStorage, attend, leave, multiply
from attn_mlir.schedules.attention.streaming.policy import (
    check_config,
    chosen_order,
    refuse_other_keys,
)
from attn_mlir.schedules.core.config import Config
from attn_mlir.schedules.core.entries import CONFIG
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.kernel import attention_kernel, every_tile_with_queries
from attn_mlir.schedules.operands.storage import has_padded_queries
from attn_mlir.schedules.policy.tiling import (
    MAX_HEAD_DIM,
    STREAM_KEYS,
    SWAPPED,
    SWAPPED_COLUMNS,
    SWAPPED_ROWS,
    SWAPPED_TILES,
    SwappedRows,
    swapped_query_tiles,
    swapped_stages,
)
from attn_mlir.schedules.registry import register
from attn_mlir.schedules.sources.kv_source import CopiedKV, copied_kv
from attn_mlir.schedules.sources.transport import stream

ELEMENT_TYPES = ("bf16", "f16")
MOST_COLUMNS = max(SWAPPED_COLUMNS)  # of V
HEAD_DIM_STEP = 8  # tensor maps need strides of 16 bytes


@dataclass(frozen=True)
class SwappedConfig(Config):
    """How one attention operation with few queries is computed: `Config` with other defaults."""

    tile_m: int = SWAPPED_ROWS
    q_tiles: int = 1
    tile_n: int = STREAM_KEYS
    exp2_period: int = 0
    tile_order: str = "persistent"

    @property
    def owns_keys(self) -> bool:
        """Each thread of those that attend has a key."""
        return True


@dataclass(frozen=True)
class Options:
    """Wishes: an option other than 0 overrides what the sizes say.

    Attributes:
      q_tiles: 8 query rows of a work tile each, 1, 2 or 4; as many as a group's heads fill where none
        are given.
      kv_stages: slots of each of the rings of K and V.
      tile_order: one of `TILE_ORDERS` but `clc`; where none is given by the queries.
    """

    q_tiles: int = 0
    kv_stages: int = 0
    tile_order: str = ""


@register
class MhaSwapped:
    """Attention of few queries with keys in the rows of its products."""

    name: ClassVar[str] = SWAPPED
    operation: ClassVar[type[Any]] = attn.MhaOp
    options: ClassVar[type[Any]] = Options
    needs: ClassVar[frozenset[Feature]] = frozenset({Feature.TENSOR_MEMORY, Feature.COPY_ENGINE})

    def takes(self, op: attn.MhaOp, target: Target) -> bool:
        """No operation that does not ask for it."""
        return False

    def configure(self, op: attn.MhaOp, target: Target, options: Mapping[str, Any]) -> None:
        """Packs the heads of a group into a tile, and gives the rings what shared memory is left.

        Raises:
          VerifyError: an operation without a kernel, or a configuration that cannot be.
        """
        wishes = Options(**options)
        _refuse_unsupported(op)
        group, is_padded = op.heads // op.kv_heads, has_padded_queries(op.q)
        tiles = wishes.q_tiles or swapped_query_tiles(1, group, is_padded=is_padded)
        rows = SwappedRows.of(group, tiles, is_padded=is_padded)
        output_bits = ws.element_bits(op.output_type)
        stages = swapped_stages(target, op.head_dim, op.v_head_dim, rows, output_bits=output_bits)
        chosen = SwappedConfig(
            tile_m=rows.rows,
            kv_stages=wishes.kv_stages or stages,
            packed_heads=rows.heads,
            tile_order=wishes.tile_order or chosen_order(op),
        )
        config = dataclasses.replace(chosen, **SwappedConfig.given(op))
        _check(op, config)
        op.attributes[CONFIG] = config.to_attr()

    def build(self, function: Any, op: attn.MhaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one attention operation, which has `attn.config`.

        Raises:
          VerifyError: the function computes something else as well, the operation has no
            configuration, or its score modifier is not element-wise.
        """
        with attention_kernel(function, op, SwappedConfig) as (kernel, problem, stored):
            source = copied_kv(problem, *stored)
            b.emit_roles(_roles(problem, SwappedStorage(problem), source))
        return kernel


def _refuse_unsupported(op: attn.MhaOp) -> None:
    """Raises VerifyError for a legal `attn.mha` that the kernel does not compute."""
    for element in (str(op.element_type), str(op.stored_element_type)):
        if element not in ELEMENT_TYPES:
            allowed = " and ".join(ELEMENT_TYPES)
            raise op_error(op, f"has no kernel for {element} elements: supported are {allowed}")
    refuse_other_keys(op, STREAM_KEYS)
    sizes = ("head_dim", op.head_dim, MAX_HEAD_DIM), ("v_head_dim", op.v_head_dim, MOST_COLUMNS)
    for name, size, most in sizes:
        if size % HEAD_DIM_STEP or not HEAD_DIM_STEP <= size <= most:
            allowed = f"multiples of {HEAD_DIM_STEP} up to {most}"
            raise op_error(op, f"has no kernel for {name} {size}: supported are {allowed}")


def _check(op: attn.MhaOp, config: SwappedConfig) -> None:
    """Raises VerifyError for a configuration that the kernel cannot have."""
    free = ("tile_m", "kv_stages", "packed_heads", "tile_order")
    check_config(op, config, SwappedConfig(), free)
    if config.tile_m not in (sizes := [n * SWAPPED_ROWS for n in SWAPPED_TILES]):
        allowed = ", ".join(map(str, sizes))
        raise op_error(op, f"expects tile_m of {allowed}, got {config.tile_m}")


def _roles(problem: Problem, storage: SwappedStorage, source: CopiedKV) -> list[b.Role]:
    def work(body: Callable[[WorkTile], None]) -> Callable[[Value], None]:
        """The work tiles of a role, from when the kernels before this one are over."""

        def run(_: Value) -> None:
            b.grid_dependency_wait()
            with every_tile_with_queries(problem) as tile:
                body(tile)

        return run

    def load(number: Value) -> None:
        work(lambda tile: stream(problem, storage, source, tile))(number)
        b.launch_dependents()

    roles = [
        b.Role("attend", work(lambda tile: attend(problem, storage, tile)), warps=WARPGROUP_WARPS),
        b.Role("mma", work(lambda tile: multiply(problem, storage, tile)), lanes=1),
    ]
    if storage.out is not None:
        roles.append(b.Role("leave", work(lambda tile: leave(problem, storage, tile)), lanes=1))
    return [*roles, b.Role("load", load, lanes=1)]
