"""From `attn.sparse_mla` of 128 heads to a `ws.kernel` of a pair of CTAs whose threads copy rows.

As `kernel_pair`, except for the producers: warps 4-7 copy keys, 8-11 values, 12 reads the lists,
and 13, with one thread, copies Q and O. A row takes two thirds of the instructions of gather
copies. But a block begins when the one before has arrived, not when its slots are free, so this
schedule is chosen by name only.
"""

from functools import partial
from typing import ClassVar

from attn_mlir.schedules import emit as b
from attn_mlir.schedules.latent.common.rows import PlainRows
from attn_mlir.schedules.latent.sparse.pair import SparsePairStorage, move
from attn_mlir.schedules.latent.sparse.pair_threads import copy_keys, copy_values
from attn_mlir.schedules.latent.sparse.policy import SPARSE_PAIR_THREADS
from attn_mlir.schedules.latent.sparse.problem import SparseProblem
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register

from .kernel_pair import Filling, SparseMlaPair, roles_of

COPY, SOFTMAX, OTHERS = 96, 224, 96  # registers of a thread; 512 in four warps, one of each quarter


@register
class SparseMlaPairThreads(SparseMlaPair):
    """Sparse latent attention of 128 heads in a pair of CTAs, of rows that threads copy."""

    policy: ClassVar[Policy] = SPARSE_PAIR_THREADS

    def roles(self, problem: SparseProblem) -> list[b.Role]:
        """As `SparseMla.roles`."""
        storage = SparsePairStorage(problem, loaders=0)
        source = problem.source
        assert isinstance(source, PlainRows)
        common = problem, storage, source
        several = {"keys": partial(copy_keys, *common), "values": partial(copy_values, *common)}
        filling = Filling(
            {name: (role, COPY) for name, role in several.items()},
            {"move": partial(move, problem, storage)},
            finders=1,
            softmax=SOFTMAX,
            others=OTHERS,
        )
        return roles_of(problem, storage, filling)
