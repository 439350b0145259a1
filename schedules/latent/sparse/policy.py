"""The policies of sparse latent attention: one CTA for a query, or a pair for 128 heads."""

from typing import ClassVar

from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import HALF_ROWS, Target
from attn_mlir.schedules.latent.common.policy import HALF_TILE_HEADS, PAIR_FEATURES, PairPolicy
from attn_mlir.schedules.policy.base import Call, Claims, Policy
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.knobs import (
    Domain,
    Knob,
    Knobs,
    Setting,
    at_least,
    half_tile_knobs,
)
from attn_mlir.schedules.policy.refusal import Mismatch

TYPES = ("bf16", "f16", "e4m3")
NARROW: dict[str, Setting] = {"kv_stages": 4, "rescale_threshold": 2}
"""Where everything has 8 bits: slots are half as large; P is 2^6 at a maximum, and 2^8 at most."""


class SparsePolicy(Policy):
    """One query in one CTA, with O in tensor memory."""

    name: ClassVar[str] = "sparse-mla"
    suffix: ClassVar[str] = "cta"
    operation: ClassVar[str] = "sparse_mla"
    needs: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.TENSOR_MEMORY, Feature.COPY_ENGINE, Feature.GATHER_COPIES}
    )
    claims: ClassVar[Claims] = Claims(types=TYPES, indexed_rows=True, rows=True)
    knobs: ClassVar[tuple[Knob, ...]] = half_tile_knobs()

    def takes(self, facts: Facts, call: Call) -> bool:
        """Problems that no pair takes."""
        return True

    def mismatch(self, facts: Facts, target: Target) -> Mismatch | None:
        """As of every policy; heads fill a tile's rows, or divide them."""
        heads = facts.heads
        if heads % HALF_TILE_HEADS or (heads > HALF_ROWS and heads % HALF_ROWS):
            domain = f"a multiple of {HALF_TILE_HEADS} up to {HALF_ROWS} or of {HALF_ROWS}"
            return Mismatch("heads", domain, heads)
        return super().mismatch(facts, target)

    def choose(self, facts: Facts, call: Call, asked: Knobs) -> Knobs:
        """Fixed tiles, with more slots where elements have 8 bits."""
        return {**self.defaults, **(NARROW if facts.is_fp8 else {}), **asked}

    def domains(self, facts: Facts, target: Target, knobs: Knobs) -> dict[str, Domain]:
        """Only stages may differ."""
        return {"kv_stages": at_least(1)}


class SparsePairPolicy(PairPolicy, SparsePolicy):
    """One query of 128 heads in a pair of CTAs, with O in tensor memory."""

    name: ClassVar[str] = "sparse-mla-pair"
    kernel: ClassVar[str] = "kernel_pair"
    needs: ClassVar[frozenset[Feature]] = SparsePolicy.needs | PAIR_FEATURES


class SparsePairThreadsPolicy(SparsePairPolicy):
    """The same with rows that threads copy; it is slower, and chosen by name only."""

    name: ClassVar[str] = "sparse-mla-pair-threads"
    kernel: ClassVar[str] = "kernel_pair_threads"
    suffix: ClassVar[str] = "threads"
    by_name: ClassVar[bool] = True
    needs: ClassVar[frozenset[Feature]] = SparsePairPolicy.needs - {Feature.GATHER_COPIES}
    claims: ClassVar[Claims] = Claims(types=TYPES, indexed_rows=True)

    def takes(self, facts: Facts, call: Call) -> bool:
        """None."""
        return False


SPARSE, SPARSE_PAIR, SPARSE_PAIR_THREADS = (
    SparsePolicy(),
    SparsePairPolicy(),
    SparsePairThreadsPolicy(),
)
