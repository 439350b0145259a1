"""From `attn.mla_decode` of 128 heads to a `ws.kernel`: a query in a pair of CTAs.

Over the rows that lists name the roles are those of sparse latent attention in pairs
(`sparse_mla_pair`); what a work tile is, and where its results go, is that of decoding
(`parts.sparse_problem.SparseDecode`). Whole sequences come in boxes (`parts.walked_pair`): warps
0-3 are the softmax and rescale O, and of those with one thread 4 copies keys, and O out, 5 copies
values, and in the even CTA 6 and 7 issue the two products.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.latent.common import absorbed_pair as pair
from attn_mlir.schedules.latent.common.row_boxes import RowBoxes, boxes_of
from attn_mlir.schedules.latent.decode import pair as walked
from attn_mlir.schedules.latent.decode.arguments import decode_kernel, finds_rows, found_kernel
from attn_mlir.schedules.latent.decode.policy import DECODE_PAIR, KEYS
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register

from ..sparse.kernel_pair import SOFTMAX_WARPS, PairConfig, pair_roles_of
from .kernel import MlaDecode


@register
class MlaDecodePair(MlaDecode):
    """Latent attention after absorption, of 128 heads in a pair of CTAs."""

    policy: ClassVar[Policy] = DECODE_PAIR

    def build(self, function: Any, op: attn.MlaDecodeOp, target: Target) -> ws.KernelOp:
        """As `MlaDecode.build`."""
        if finds_rows(op):
            with found_kernel(function, op, PairConfig, ctas=ws.PAIR) as (kernel, found):
                b.emit_roles(pair_roles_of(found))
            return kernel
        with decode_kernel(function, op, PairConfig, ctas=ws.PAIR) as (kernel, problem, rows):
            b.emit_roles(_roles(problem, boxes_of(problem, rows.pages, KEYS)))
        return kernel


def _roles(problem: Problem, boxes: RowBoxes) -> list[b.Role]:
    """The roles over whole sequences; declares their rings at the insertion point."""
    storage = pair.PairStorage(problem)
    given = (problem, storage, boxes)

    def work(role: Callable[[WorkTile], None]) -> Callable[[Value], None]:
        """The work tile of a role, from when the kernels before this one are over."""

        def run(_: Value) -> None:
            b.grid_dependency_wait()
            with walked.every_pair_tile(problem) as tile:
                role(tile)

        return run

    def of(role: Callable[..., None]) -> Callable[[WorkTile], None]:
        """A role that works on a tile's blocks wherever they come from."""
        return lambda tile: role(problem, storage, walked.WalkedPairWork(problem, storage, tile))

    return [
        b.Role("softmax", work(of(pair.softmax)), warps=SOFTMAX_WARPS),
        b.Role("keys", work(partial(walked.load_keys, *given)), lanes=1),
        b.Role("values", work(partial(walked.load_values, *given)), lanes=1),
        b.Role("score", work(of(pair.score)), lanes=1, ranks=[0]),
        b.Role("sum_up", work(of(pair.sum_up)), lanes=1, ranks=[0]),
    ]
