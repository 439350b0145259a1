"""From `attn.mla_decode` to a `ws.kernel` in tiles of 64 rows, with O in tensor memory.

The compute roles are those of `common.absorbed`: a tile of 64 keys is loaded once, as keys and as
values. Rows of a tile are the heads of a query, and of as many queries as fit.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, WorkTile
from attn_mlir.schedules.kernel import every_tile
from attn_mlir.schedules.latent.common import absorbed
from attn_mlir.schedules.latent.decode.arguments import (
    decode_kernel,
    reads_rows,
    row_kernel,
)
from attn_mlir.schedules.latent.decode.config import DecodeConfig
from attn_mlir.schedules.latent.decode.policy import DECODE
from attn_mlir.schedules.latent.decode.work import ContiguousStorage, ContiguousWork, in_tiles
from attn_mlir.schedules.latent.sparse import kernel as sparse
from attn_mlir.schedules.latent.sparse.problem import SparseStorage
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register
from attn_mlir.schedules.sources.kv_source import CopiedKV, copied_kv
from attn_mlir.schedules.sources.transport import epilogue, load_streamed


@register
class MlaDecode:
    """Latent attention after absorption, with O in tensor memory."""

    policy: ClassVar[Policy] = DECODE

    def build(self, function: Any, op: attn.MlaDecodeOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one such operation, which has `attn.config`.

        Raises:
          VerifyError: as `decode_kernel`.
        """
        if reads_rows(op):
            with row_kernel(function, op, DecodeConfig) as (kernel, rows_problem):
                b.emit_roles(sparse.roles_of(rows_problem, SparseStorage(rows_problem)))
            return kernel
        with decode_kernel(function, op, DecodeConfig) as (kernel, problem, rows):
            source = copied_kv(problem, rows, rows)
            b.emit_roles(_roles(problem, ContiguousStorage(problem), source))
        return kernel


def _roles(problem: Problem, storage: ContiguousStorage, source: CopiedKV) -> list[b.Role]:
    def of(role: Callable[..., None]) -> Callable[[WorkTile], None]:
        """The body of a compute role in a work tile."""
        return lambda tile: role(problem, storage, ContiguousWork(problem, tile))

    def move(tile: WorkTile) -> None:
        load_streamed(problem, storage, source, tile)
        b.launch_dependents()
        epilogue(problem, storage.out, tile)

    work = partial(in_tiles, partial(every_tile, problem))
    return [
        b.Role("softmax", work(of(absorbed.softmax)), warps=WARPGROUP_WARPS),
        b.Role("move", work(move), lanes=1),
        b.Role("score", work(of(absorbed.issue_qk)), lanes=1),
        b.Role("sum_up", work(of(absorbed.issue_pv)), lanes=1),
    ]
