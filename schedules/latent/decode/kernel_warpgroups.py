"""From `attn.mla_decode` to a `ws.kernel` in tiles of 64 rows, with O in registers.

A work tile is that of `mla-decode`: the heads of a query, and of as many queries as fit, over the
tiles of 64 keys of their sequence. Two warpgroups each own half of O (`decode.warpgroups`); one
warp loads, and stores O.
"""

from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, WorkTile
from attn_mlir.schedules.kernel import every_tile
from attn_mlir.schedules.latent.decode.arguments import (
    decode_kernel,
)
from attn_mlir.schedules.latent.decode.config import DecodeConfig
from attn_mlir.schedules.latent.decode.policy import DECODE_WARPGROUPS
from attn_mlir.schedules.latent.decode.warpgroups import (
    RegisterLatentStorage,
    first_half,
    second_half,
)
from attn_mlir.schedules.latent.decode.work import in_tiles
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register
from attn_mlir.schedules.sources.kv_source import CopiedKV, copied_kv
from attn_mlir.schedules.sources.transport import epilogue, load_streamed

FIRST_REGISTERS, SECOND_REGISTERS, LOADER_REGISTERS = (
    240,
    168,
    96,
)  # registers of a thread; 168 of each of three warpgroups


@register
class MlaDecodeRegisters:
    """Latent attention after absorption, with O in the registers of two warpgroups."""

    policy: ClassVar[Policy] = DECODE_WARPGROUPS

    def build(self, function: Any, op: attn.MlaDecodeOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one such operation, which has `attn.config`.

        Raises:
          VerifyError: as `decode_kernel`.
        """
        with decode_kernel(function, op, DecodeConfig) as (kernel, problem, rows):
            source = copied_kv(problem, rows, rows)
            b.emit_roles(_roles(problem, RegisterLatentStorage(problem), source))
        return kernel


def _roles(problem: Problem, storage: RegisterLatentStorage, source: CopiedKV) -> list[b.Role]:
    def move(tile: WorkTile) -> None:
        load_streamed(problem, storage, source, tile)
        b.launch_dependents()
        if storage.out is not None:
            epilogue(problem, storage.out, tile)

    work = partial(in_tiles, partial(every_tile, problem))
    first, second = (partial(half, problem, storage) for half in (first_half, second_half))
    return [
        b.Role("attend", work(first), warps=WARPGROUP_WARPS, registers=FIRST_REGISTERS),
        b.Role("follow", work(second), warps=WARPGROUP_WARPS, registers=SECOND_REGISTERS),
        b.Role("move", work(move), lanes=1, registers=LOADER_REGISTERS),
    ]
