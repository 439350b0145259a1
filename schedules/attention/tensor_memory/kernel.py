"""The kernel of `attn.mha` with S and O in tensor memory: warp-specialised, two query tiles.

A work tile is 256 query rows of one head. Warps 0-3 and 4-7 are the softmax groups of its two query
tiles of 128 rows, 8-11 rescale and normalise the accumulators, 12 issues the products, 13 stores,
14 loads, 15 claims further work tiles if the tile order is `clc`. This module assembles the kernel
from `splits`: where keys and values come from, the problem with its mask, the order of work tiles
and the roles.
"""

from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.attention.tensor_memory.config import MhaConfig
from attn_mlir.schedules.attention.tensor_memory.correction import correction
from attn_mlir.schedules.attention.tensor_memory.mma import mma
from attn_mlir.schedules.attention.tensor_memory.policy import TENSOR_MEMORY
from attn_mlir.schedules.attention.tensor_memory.softmax import softmax
from attn_mlir.schedules.attention.tensor_memory.storage import Storage
from attn_mlir.schedules.core.problem import Problem, Value
from attn_mlir.schedules.kernel import attention_kernel, every_tile, over_tiles
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register
from attn_mlir.schedules.sources.kv_source import KVSource, copied_kv
from attn_mlir.schedules.sources.transport import epilogue, load

WARPS_PER_GROUP = 4  # 128 threads: one per row of a query tile


@register
class MhaTensor:
    """Attention with S and O in tensor memory."""

    policy: ClassVar[Policy] = TENSOR_MEMORY

    def build(self, function: Any, op: attn.MhaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one attention operation, which has `attn.config`.

        Raises:
          VerifyError: the function computes something else as well, the operation has no
            configuration, or its score modifier is not element-wise.
        """
        with attention_kernel(function, op, MhaConfig) as (kernel, problem, stored):
            config, source = MhaConfig.of(op), copied_kv(problem, *stored)
            storage = Storage(problem, config.stages)
            b.emit_roles(roles_of(problem, config, storage, source))
        return kernel


def roles_of(
    problem: Problem, config: MhaConfig, storage: Storage, source: KVSource
) -> list[b.Role]:
    """The roles of a kernel whose products accumulate in tensor memory."""
    claimed, groups = storage.claimed, config.q_tiles

    work = partial(over_tiles, problem, claimed=claimed)

    def claim(_: Value) -> None:
        assert claimed is not None
        with every_tile(problem, claimed):
            b.try_cancel(claimed)

    single = partial(b.Role, lanes=1, registers=config.other_registers)
    roles = [
        b.Role(
            "softmax",
            work(lambda tile, q_tile: softmax(problem, storage, tile, q_tile)),
            warps=WARPS_PER_GROUP * groups,
            groups=groups,
            registers=config.softmax_registers,
        ),
        b.Role(
            "correction",
            work(lambda tile, _: correction(problem, storage, tile)),
            warps=WARPS_PER_GROUP,
            registers=config.correction_registers,
        ),
        single("mma", work(lambda tile, _: mma(problem, storage, tile))),
        single("epilogue", work(lambda tile, _: epilogue(problem, storage.out, tile))),
        single("load", work(lambda tile, _: load(problem, storage, source, tile))),
    ]
    return roles if claimed is None else [*roles, single("claim", claim)]
