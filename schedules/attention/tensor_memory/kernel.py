"""The kernel of `attn.mha` with S and O in tensor memory: warp-specialised, two query tiles.

A work tile is 256 query rows of one head. Warps 0-3 and 4-7 are the softmax groups of its two query
tiles of 128 rows, 8-11 rescale and normalise the accumulators, 12 issues the products, 13 stores, 14
loads, 15 claims further work tiles if the tile order is `clc`. This module assembles the kernel from
`parts`: where keys and values come from, the problem with its mask, the order of work tiles and the
roles.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.attention.tensor_memory.correction import correction
from attn_mlir.schedules.attention.tensor_memory.mma import mma
from attn_mlir.schedules.attention.tensor_memory.policy import MhaConfig, Options, configure
from attn_mlir.schedules.attention.tensor_memory.softmax import softmax
from attn_mlir.schedules.attention.tensor_memory.storage import Storage
from attn_mlir.schedules.core.problem import Problem, WorkTile
from attn_mlir.schedules.kernel import attention_kernel, every_tile, every_tile_with_queries
from attn_mlir.schedules.policy.tiling import TILED
from attn_mlir.schedules.registry import register
from attn_mlir.schedules.sources.kv_source import KVSource, copied_kv
from attn_mlir.schedules.sources.transport import epilogue, load

WARPS_PER_GROUP = 4  # 128 threads: one per row of a query tile


@register
class MhaTensor:
    """Attention with S and O in tensor memory."""

    name: ClassVar[str] = TILED
    operation: ClassVar[type[Any]] = attn.MhaOp
    options: ClassVar[type[Any]] = Options
    needs: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.TENSOR_MEMORY, Feature.COPY_ENGINE, Feature.REGISTER_BUDGETS}
    )

    def takes(self, op: attn.MhaOp, target: Target) -> bool:
        """Any attention."""
        return True

    def configure(self, op: attn.MhaOp, target: Target, options: Mapping[str, Any]) -> None:
        """See `mha_config.configure`."""
        configure(op, target, options)

    def build(self, function: Any, op: attn.MhaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one attention operation, which has `attn.config`.

        Raises:
          VerifyError: the function computes something else as well, the operation has no
            configuration, or its score modifier is not element-wise.
        """
        with attention_kernel(function, op, MhaConfig) as (kernel, problem, stored):
            config, source = MhaConfig.of(op), copied_kv(problem, *stored)
            emit_roles(problem, config, Storage(problem, config.stages), source)
        return kernel


def emit_roles(problem: Problem, config: MhaConfig, storage: Storage, source: KVSource) -> None:
    """The roles of a kernel whose products accumulate in tensor memory, into its body."""
    groups = config.q_tiles
    other, corrector = config.other_registers, config.correction_registers
    last = WARPS_PER_GROUP * groups

    def work(body: Callable[[WorkTile], None]) -> None:
        """Emits a role's loop over work tiles around the code for one of them."""
        with every_tile_with_queries(problem, storage.answers) as tile:
            body(tile)

    with b.role(
        "softmax", first=0, warps=last, groups=groups, registers=config.softmax_registers
    ) as way:
        work(lambda tile: softmax(problem, storage, tile, way))
    with b.role("correction", first=last, warps=WARPS_PER_GROUP, registers=corrector):
        work(lambda tile: correction(problem, storage, tile))
    with b.role("mma", first=last + 4, warps=1, lanes=1, registers=other):
        work(lambda tile: mma(problem, storage, tile))
    with b.role("epilogue", first=last + 5, warps=1, lanes=1, registers=other):
        work(lambda tile: epilogue(problem, storage.out, tile))
    with b.role("load", first=last + 6, warps=1, lanes=1, registers=other):
        work(lambda tile: load(problem, storage, source, tile))
    if (answers := storage.answers) is not None:
        with b.role("claim", first=last + 7, warps=1, lanes=1, registers=other):
            with every_tile(problem, answers):
                b.claim(answers)
