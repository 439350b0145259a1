"""From `attn.mla_decode` of 128 heads to a `ws.kernel`: a query in a pair of CTAs.

For indexed rows the roles are those of sparse latent attention in pairs (`sparse.kernel_pair`); the
work tile and its results are those of decoding (`sparse.problem.SparseDecode`). Whole sequences
come in boxes (`decode.pair`): warps 0-3 are the softmax and rescale O; of the warps with one thread
4 copies keys, and O out, 5 copies values, and in the even CTA 6 and 7 issue the two products.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, WorkTile
from attn_mlir.schedules.latent.common import absorbed_pair as pair
from attn_mlir.schedules.latent.common.row_boxes import RowBoxes, boxes_of
from attn_mlir.schedules.latent.decode import pair as contiguous
from attn_mlir.schedules.latent.decode.arguments import decode_kernel, reads_rows, row_kernel
from attn_mlir.schedules.latent.decode.policy import DECODE_PAIR, KEYS
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register

from ..sparse.kernel_pair import SOFTMAX_WARPS, PairConfig, pair_roles_of
from .kernel import MlaDecode
from .work import in_tiles


@register
class MlaDecodePair(MlaDecode):
    """Latent attention after absorption, of 128 heads in a pair of CTAs."""

    policy: ClassVar[Policy] = DECODE_PAIR

    def build(self, function: Any, op: attn.MlaDecodeOp, target: Target) -> ws.KernelOp:
        """As `MlaDecode.build`."""
        if reads_rows(op):
            with row_kernel(function, op, PairConfig, ctas=ws.PAIR) as (kernel, rows_problem):
                b.emit_roles(pair_roles_of(rows_problem))
            return kernel
        with decode_kernel(function, op, PairConfig, ctas=ws.PAIR) as (kernel, problem, rows):
            b.emit_roles(_roles(problem, boxes_of(problem, rows.pages, KEYS)))
        return kernel


def _roles(problem: Problem, boxes: RowBoxes) -> list[b.Role]:
    """The roles over whole sequences; declares their rings at the insertion point."""
    storage = pair.PairStorage(problem)
    common = (problem, storage, boxes)

    work = partial(in_tiles, partial(contiguous.every_pair_tile, problem))

    def of(role: Callable[..., None]) -> Callable[[WorkTile], None]:
        """The body of a compute role in a work tile."""
        return lambda tile: role(
            problem, storage, contiguous.ContiguousPairWork(problem, storage, tile)
        )

    return [
        b.Role("softmax", work(of(pair.softmax)), warps=SOFTMAX_WARPS),
        b.Role("keys", work(partial(contiguous.load_keys, *common)), lanes=1),
        b.Role("values", work(partial(contiguous.load_values, *common)), lanes=1),
        b.Role("score", work(of(pair.issue_qk)), lanes=1, ranks=[0]),
        b.Role("sum_up", work(of(pair.issue_pv)), lanes=1, ranks=[0]),
    ]
