"""`one-warp`: attention of 16 queries of a head at a time, by one warp.

The rings: load --q, k, v--> attend.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.config import Config
from attn_mlir.schedules.kernel import attention_kernel, over_tiles
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register
from attn_mlir.schedules.sources.listed_copies import streamed_kv
from attn_mlir.schedules.sources.transport import load_streamed

from .policy import ONE_WARP
from .roles import Storage, attend


@dataclass(frozen=True)
class OneWarpConfig(Config):
    """`Config` with the tiles of this schedule."""

    tile_m: int = 16  # rows of mma.sync
    q_tiles: int = 1
    tile_n: int = 32
    kv_stages: int = 2
    exp2_period: int = 0
    rescale_threshold: int = 0


@register
class OneWarp:
    """Attention by one warp, which computes where it is asked for by name."""

    policy: ClassVar[Policy] = ONE_WARP

    def build(self, function: Any, op: attn.MhaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one attention operation."""
        with attention_kernel(function, op, OneWarpConfig) as (kernel, problem, stored):
            storage, source = Storage(problem), streamed_kv(problem, *stored)
            work = partial(over_tiles, problem)
            load = work(lambda tile, _: load_streamed(problem, storage, source, tile))
            roles = [b.Role("attend", work(lambda tile, _: attend(problem, storage, tile)))]
            b.emit_roles([*roles, b.Role("load", load, lanes=1)])
        return kernel
