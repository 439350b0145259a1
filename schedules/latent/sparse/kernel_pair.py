"""From `attn.sparse_mla` of 128 heads to a `ws.kernel`: a query in a pair of CTAs, 64 heads each.

Warps 0-3 are the softmax and rescale O, 4 and 5 read the lists; of the warps with one thread 6 to 9
gather keys, 6 also copies Q and O, 10 to 13 gather values, and in the even CTA 14 and 15 issue the
two products. With rows of 8 bits, 4-7 upcast keys, 8-11 values, 12 reads the lists and 13 copies Q
and O.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.latent.common.rows import LOADERS, PAIR_WARPS, PlainRows
from attn_mlir.schedules.latent.sparse import pair as roles
from attn_mlir.schedules.latent.sparse.policy import SPARSE_PAIR
from attn_mlir.schedules.latent.sparse.problem import SparseProblem, Value
from attn_mlir.schedules.latent.sparse.roles import find
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register

from .kernel import Role, SparseConfig, SparseMla, each_query

SOFTMAX_WARPS = 4


class Filling(NamedTuple):
    """The roles that fill the slots of keys and values, and the registers of the other roles.

    Attributes:
      several: roles of `PAIR_WARPS` warps, with their registers.
      single: roles of one thread.
      finders: warps that read the lists.
      softmax, others: registers of a thread, of 512 in four warps, one of each quarter.
    """

    several: Mapping[str, tuple[Role, int]]
    single: Mapping[str, Role]
    finders: int
    softmax: int
    others: int


@dataclass(frozen=True)
class PairConfig(SparseConfig):
    """Tiles of one query: 64 heads in each CTA, and blocks of 128 entries.

    Attributes:
      kv_stages: slots of the ring of keys, which hold some columns of a CTA's half of a block.
    """

    tile_n: int = 128


@register
class SparseMlaPair(SparseMla):
    """Sparse latent attention of 128 heads in a pair of CTAs, with O in tensor memory."""

    policy: ClassVar[Policy] = SPARSE_PAIR
    ctas: ClassVar[int] = ws.PAIR
    config: ClassVar[type[SparseConfig]] = PairConfig

    def roles(self, problem: SparseProblem) -> list[b.Role]:
        """As `SparseMla.roles`."""
        return pair_roles_of(problem)


def pair_roles_of(problem: SparseProblem) -> list[b.Role]:
    """The roles of a kernel of pairs; declares their rings at the insertion point."""
    storage = roles.SparsePairStorage(problem)
    return roles_of(problem, storage, _filling(problem, storage))


def roles_of(
    problem: SparseProblem, storage: roles.SparsePairStorage, filling: Filling
) -> list[b.Role]:
    """The roles that fill slots, those that read lists, and those that compute."""
    common, others = (problem, storage), filling.others

    def body(role: Callable[..., None], *arguments: Any) -> Callable[[Value], None]:
        return each_query(problem, partial(role, *arguments))

    single = partial(b.Role, lanes=1, registers=others)
    softmax = body(roles.softmax, *common)
    return [
        b.Role("softmax", softmax, warps=SOFTMAX_WARPS, registers=filling.softmax),
        *(
            b.Role(name, body(role), warps=PAIR_WARPS, registers=registers)
            for name, (role, registers) in filling.several.items()
        ),
        b.Role("find", body(find, *common), warps=filling.finders, registers=others),
        *(single(name, body(role)) for name, role in filling.single.items()),
        single("score", body(roles.issue_qk, *common), ranks=[0]),
        single("sum_up", body(roles.issue_pv, *common), ranks=[0]),
    ]


def _filling(problem: SparseProblem, storage: roles.SparsePairStorage) -> Filling:
    """Threads that gather rows in the products' element type, or warps that upcast others."""
    common, source = (problem, storage), problem.source
    if isinstance(source, PlainRows):
        gather = {
            f"{name}{part}": partial(load, *common, source, part=part)
            for name, load in (("keys", roles.load_keys), ("values", roles.load_values))
            for part in range(LOADERS)
        }
        return Filling({}, gather, finders=2, softmax=224, others=96)
    widen: dict[str, tuple[Role, int]] = {
        "keys": (partial(roles.upcast_keys, *common, source), 152),
        "values": (partial(roles.upcast_values, *common, source), 144),
    }
    mover: dict[str, Role] = {"move": partial(roles.move, *common)}
    return Filling(widen, mover, finders=1, softmax=176, others=40)
