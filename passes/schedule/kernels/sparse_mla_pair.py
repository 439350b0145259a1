"""From `attn.sparse_mla` of 128 heads to a `ws.kernel`: one query in a pair of CTAs, 64 heads in each.

Warps 0-3 are the softmax and rescale O, 4 and 5 read the lists, and of those with one thread 6 to 9
gather keys, 6 also moves Q and O, 10 to 13 gather values, and in the even CTA 14 and 15 issue the two
products.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.passes.infrastructure.diagnostics import op_error
from attn_mlir.passes.schedule.parts import builder as b
from attn_mlir.passes.schedule.parts import sparse_pair as roles
from attn_mlir.passes.schedule.parts.latent_source import LOADERS, WideRows
from attn_mlir.passes.schedule.parts.sparse_problem import Query, SparseProblem
from attn_mlir.passes.schedule.parts.sparse_roles import find
from attn_mlir.passes.schedule.registry import register
from attn_mlir.passes.target.limits import Target

from .sparse_mla import PAIR_HEADS, SparseConfig, SparseMla, is_for_pairs

SOFTMAX_REGISTERS, OTHER_REGISTERS = 224, 96  # of a thread, of what four warpgroups have together


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

    name: ClassVar[str] = "sparse-mla-pair"
    ctas: ClassVar[int] = ws.PAIR
    config: ClassVar[type[SparseConfig]] = PairConfig

    def takes(self, op: attn.SparseMlaOp, target: Target) -> bool:
        """Heads for whole pairs, and rows of 16 bits."""
        return is_for_pairs(op)

    def configure(self, op: attn.SparseMlaOp, target: Target, options: Mapping[str, Any]) -> None:
        """Fixed tiles, if there are heads for them."""
        if op.heads % PAIR_HEADS:
            raise op_error(
                op,
                f"has no kernel of pairs for {op.heads} heads: supported are multiples of {PAIR_HEADS}",
            )
        if not is_for_pairs(op):
            raise op_error(
                op, "has no kernel of pairs for rows of 8 bits: supported are those of bf16"
            )
        super().configure(op, target, options)

    def chosen(self, op: attn.SparseMlaOp) -> PairConfig:
        """As many slots of keys as there is room for, unless the operation says how many."""
        chosen: dict[str, Any] = {"kv_stages": roles.key_slots(op.head_dim)}
        return PairConfig(**chosen | PairConfig.given(op))

    def emit_roles(self, problem: SparseProblem) -> None:
        """As `SparseMla.emit_roles`."""
        storage, source = roles.PairStorage(problem), problem.source
        assert isinstance(source, WideRows), source
        loaders = {
            f"{name}{part}": partial(load, problem, storage, source, part=part)
            for name, load in (("keys", roles.load_keys), ("values", roles.load_values))
            for part in range(LOADERS)
        }
        issuers: dict[str, Callable[[Query], None]] = {
            "score": partial(roles.score, problem, storage),
            "sum_up": partial(roles.sum_up, problem, storage),
        }
        with b.role("softmax", first=0, warps=4, registers=SOFTMAX_REGISTERS):
            problem.every_query(partial(roles.softmax, problem, storage))
        with b.role("find", first=4, warps=2, registers=OTHER_REGISTERS):
            problem.every_query(partial(find, problem, storage))
        for warp, (name, role) in enumerate((loaders | issuers).items(), 6):
            ranks = [0] if name in issuers else None
            with b.role(name, first=warp, warps=1, lanes=1, registers=OTHER_REGISTERS, ranks=ranks):
                problem.every_query(role)
