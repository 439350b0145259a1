"""From `attn.mla_decode` to a `ws.kernel`: rows of a latent cache past 64 rows of queries, with O
in tensor memory.

The roles that multiply are those of sparse latent attention (`parts.absorbed`): a tile of 64 keys
is read once, as keys and as values. Rows of a tile are the heads of a query, and of as many queries
as fit.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.kernel import every_tile
from attn_mlir.schedules.latent.common import absorbed
from attn_mlir.schedules.latent.decode.arguments import (
    decode_kernel,
    finds_rows,
    found_kernel,
)
from attn_mlir.schedules.latent.decode.config import DecodeConfig
from attn_mlir.schedules.latent.decode.policy import DECODE
from attn_mlir.schedules.latent.decode.work import WalkedStorage, WalkedWork
from attn_mlir.schedules.latent.sparse import kernel as sparse
from attn_mlir.schedules.latent.sparse.problem import SparseStorage
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register
from attn_mlir.schedules.sources.kv_source import CopiedKV, copied_kv
from attn_mlir.schedules.sources.transport import epilogue, stream


@register
class MlaDecode:
    """Latent attention after absorption, with O in tensor memory."""

    policy: ClassVar[Policy] = DECODE
    operation: ClassVar[type[Any]] = attn.MlaDecodeOp

    def build(self, function: Any, op: attn.MlaDecodeOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one such operation, which has `attn.config`.

        Raises:
          VerifyError: as `decode_kernel`.
        """
        if finds_rows(op):
            with found_kernel(function, op, DecodeConfig) as (kernel, found):
                b.emit_roles(sparse.roles_of(found, SparseStorage(found)))
            return kernel
        with decode_kernel(function, op, DecodeConfig) as (kernel, problem, rows):
            source = copied_kv(problem, rows, rows)
            b.emit_roles(_roles(problem, WalkedStorage(problem), source))
        return kernel


def _roles(problem: Problem, storage: WalkedStorage, source: CopiedKV) -> list[b.Role]:
    def of(role: Callable[..., None]) -> Callable[[WorkTile], None]:
        """A role that works on a tile's blocks wherever they come from."""
        return lambda tile: role(problem, storage, WalkedWork(problem, tile))

    def move(tile: WorkTile) -> None:
        stream(problem, storage, source, tile)
        b.launch_dependents()
        epilogue(problem, storage.out, tile)

    def work(role: Callable[[WorkTile], None]) -> Callable[[Value], None]:
        """The work tile of a role, from when the kernels before this one are over."""

        def run(_: Value) -> None:
            b.grid_dependency_wait()
            with every_tile(problem) as tile:
                role(tile)

        return run

    return [
        b.Role("softmax", work(of(absorbed.softmax)), warps=WARPGROUP_WARPS),
        b.Role("move", work(move), lanes=1),
        b.Role("score", work(of(absorbed.score)), lanes=1),
        b.Role("sum_up", work(of(absorbed.sum_up)), lanes=1),
    ]
