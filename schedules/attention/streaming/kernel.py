"""From `attn.mha` to a `ws.kernel` for few queries, which streams keys and values.

A work tile is one or two query tiles of 16 rows, those of a group's heads and of a few tokens: as
many as a product of one warp has. Warps 0-3 attend, each to a key slice of every key tile, with O
in registers; warps 4-7 too, if O is too wide for one warp or there are two query tiles, which share
the key tiles. The next warp merges their results, one stores O, one loads. Decoding reads each key
once and is bound by memory: the ring takes all free shared memory, and `load` goes on to the next
work tile while this one is finished. Launches overlap: a CTA starts while the previous kernel ends,
and the next kernel may start when the last copies have been issued.

```text
load --q,kv--> attend[0..3] --maxima,totals,sums--> merge --out--> leave
```
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.attention.streaming.combine_in_kernel import CombineStorage, combine
from attn_mlir.schedules.attention.streaming.policy import STREAMING
from attn_mlir.schedules.attention.streaming.roles import StreamingStorage, attend, merge
from attn_mlir.schedules.core.config import FP8_BITS, Config
from attn_mlir.schedules.core.problem import Problem, Value
from attn_mlir.schedules.kernel import attention_kernel, over_tiles
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.policy.tiling import STREAM_KEYS, STREAM_ROWS
from attn_mlir.schedules.registry import register
from attn_mlir.schedules.sources.kv_source import StreamedKV
from attn_mlir.schedules.sources.l2_prefetch import prefetch_first_tiles
from attn_mlir.schedules.sources.listed_copies import streamed_kv
from attn_mlir.schedules.sources.transport import epilogue, load_queries, load_streamed

WARPGROUP = 4  # warps that attend together, with registers of their own
MOST_WARPS = 3 * WARPGROUP  # where each of those that attend has so many registers
REGISTERS = {
    "one": (216, 72),
    "rows": (216, 144),
    "slices": (208, 88),
    "lists": (200, 104),
    "tiles": (192, 120),
}
"""Registers of attending warps, and of the others, with three warpgroups. `one`: one attends, one
combines splits. `rows`: one attends, one copies rows. `slices`: two attend to slices of O.
`lists`: likewise, while the others copy indexed rows, or combine splits of a wide O with pairs of
f32. `tiles`: two attend to query tiles, and one warp combines splits."""


@dataclass(frozen=True)
class StreamingConfig(Config):
    """How one attention operation with few queries is computed: `Config` with other defaults.

    Attributes:
      head_tiles: query tiles of a work tile along the heads of a group.
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
        """f16 for elements of 8 bits: see `operands.widen`."""
        return ir.F16Type.get() if ws.element_bits(stored) == FP8_BITS else stored


@register
class MhaStreaming:
    """Attention of few queries, with sums in the registers of single warps."""

    policy: ClassVar[Policy] = STREAMING

    def build(self, function: Any, op: attn.MhaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one attention operation, which has `attn.config`.

        Raises:
          VerifyError: the function computes something else as well, the operation has no
            configuration, or its score modifier is not element-wise.
        """
        with attention_kernel(function, op, StreamingConfig) as (kernel, problem, stored):
            source = streamed_kv(problem, *stored)
            kind = StreamingStorage if op.join is None else CombineStorage
            storage = kind(problem, target, source.box_rows)
            has_budgets = Feature.REGISTER_BUDGETS in target.features
            b.emit_roles(_roles(problem, storage, source), has_budgets=has_budgets)
        return kernel


def _roles(problem: Problem, storage: StreamingStorage, source: StreamedKV) -> list[b.Role]:
    work = partial(over_tiles, problem, waits=True)

    def attending_as(role: int) -> Callable[[Value], None]:
        return work(lambda tile, number: attend(problem, storage, tile, role, number))

    attend_warps = storage.groups * storage.key_slices
    combine_warps = storage.output_chunks.warps if isinstance(storage, CombineStorage) else 0
    registers, other_registers = _registers(problem, storage, source, attend_warps, combine_warps)
    warps = attend_warps // storage.roles
    roles = [
        b.Role(label, attending_as(role), warps=warps, groups=warps, registers=registers)
        for role in range(storage.roles)
        for label in ["attend" if role == 0 else f"attend_{role}"]
    ]
    if isinstance(storage, CombineStorage):

        def combine_splits(warp: Value) -> None:
            number = warp if combine_warps > 1 else b.constant(0)
            work(lambda tile, _: combine(problem, storage, tile, number))(warp)

        own = registers if combine_warps == WARPGROUP else other_registers
        roles.append(
            b.Role("join", combine_splits, warps=combine_warps, groups=combine_warps, registers=own)
        )
    else:
        merge_tiles = work(lambda tile, _: merge(problem, storage, tile))
        store_output = work(lambda tile, _: epilogue(problem, storage.out, tile))
        roles.append(b.Role("merge", merge_tiles, registers=other_registers))
        roles.append(b.Role("leave", store_output, lanes=1, registers=other_registers))

    def load(number: Value) -> None:
        b.launch_dependents()
        if source.by_threads:
            work(lambda tile, _: load_queries(problem, storage, tile))(number)
        else:
            prefetch_first_tiles(problem, source)
            work(lambda tile, _: load_streamed(problem, storage, source, tile))(number)

    roles.append(b.Role("load", load, lanes=1, registers=other_registers))
    if source.by_threads:
        gather = work(lambda tile, _: source.fill(storage, tile, lambda: None))
        free_warps = min(MOST_WARPS - sum(role.warps for role in roles), WARPGROUP)
        warps = 1 << (free_warps.bit_length() - 1)  # as tiles, which have a power of two of rows
        begins_warpgroup = warps == WARPGROUP
        roles.append(
            b.Role(
                "gather",
                gather,
                warps=warps,
                registers=other_registers,
                begins_warpgroup=begins_warpgroup,
            )
        )
    return roles


def _registers(
    problem: Problem,
    storage: StreamingStorage,
    source: StreamedKV,
    attending: int,
    combine_warps: int,
) -> tuple[int, int]:
    """Registers of attending warps, and of the others, by the warps that attend and combine."""
    if attending <= WARPGROUP and combine_warps != WARPGROUP:
        return REGISTERS["rows"] if source.by_threads else (0, 0)
    if (source.by_threads and attending > WARPGROUP) or (
        storage.packs_f32 and problem.shares_rows and combine_warps > 0
    ):
        return REGISTERS["lists"]
    if attending == WARPGROUP:
        return REGISTERS["one"]
    return REGISTERS["tiles" if storage.q_tiles > 1 else "slices"]
