"""The attention of one layer over a sequence that is sharded over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.scalars import integer

DTYPES = ("bf16", "f16")  # as of `attn_mlir.distributed`
ELEMENT_BYTES = 2
MAX_TOKENS, MAX_RANKS = 2**40, 2**20
NUMBERS = {
    "length": MAX_TOKENS,
    "heads": 4096,
    "kv_heads": 4096,
    "head_dim": 1024,
    "v_head_dim": 1024,
    "batch": 2**20,
    "ranks": MAX_RANKS,
    "sm_margin": 1024,
}


@dataclass(frozen=True)
class Problem:
    """The operands and the ranks.

    Attributes:
      length: tokens of the whole sequence.
      heads, kv_heads: heads of a rank before heads are exchanged; with tensor parallelism, those of
        one tensor-parallel rank.
      head_dim, v_head_dim: head sizes of K and of V.
      batch: number of sequences.
      is_causal: whether the mask is causal; else there is no mask.
      is_training: whether the backward pass is included.
      dtype: bf16 or f16.
      ranks: ranks of the group.
      sm_margin: multiprocessors that attention leaves free for NCCL's kernels. At 0, which
        `attn_mlir.distributed` uses, transfers over NCCL wait for attention and add to its time.
      is_isolated: whether the call runs alone after a pause, as benchmarks measure it, at first
        below the power limit; else the GPU is always busy.
    """

    length: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    v_head_dim: int = 128
    batch: int = 1
    is_causal: bool = True
    is_training: bool = False
    dtype: str = "bf16"
    ranks: int = 8
    sm_margin: int = 0
    is_isolated: bool = False

    def __post_init__(self) -> None:
        for name, most in NUMBERS.items():
            value = integer(name, getattr(self, name), int(name != "sm_margin"), most)
            object.__setattr__(self, name, value)  # a plain integer, whatever library it is of
        if self.heads % self.kv_heads:
            raise SpecError(
                f"kv_heads must divide heads, got heads = {self.heads} and kv_heads = "
                f"{self.kv_heads}"
            )
        if not isinstance(cast(object, self.dtype), str) or self.dtype not in DTYPES:
            raise SpecError(f"dtype must be one of {', '.join(DTYPES)}, got {shown(self.dtype)}")
        if self.length < self.ranks:
            raise SpecError(
                f"length must be at least 1 token on each rank, got {self.length} on {self.ranks}"
            )

    @property
    def own(self) -> int:
        """Tokens of the longest shard of the zigzag layout; every message has as many."""
        chunk = -(-self.length // (2 * self.ranks))
        return min(2 * chunk, self.length)

    @property
    def pairs(self) -> float:
        """Visible scores of one head of one sequence."""
        return self.length * (self.length + 1) / 2 if self.is_causal else float(self.length) ** 2

    @property
    def passes(self) -> tuple[bool, ...]:
        """The passes of a call, False for the forward and True for the backward pass."""
        return (False, True) if self.is_training else (False,)

    def score_flops(self, backward: bool) -> int:
        """FLOPs of a pass for each visible score: 2 (D + Dv) for the two products of the forward
        pass, 2 (3 D + 2 Dv) for the five of the backward pass.
        """
        if backward:
            return 2 * (3 * self.head_dim + 2 * self.v_head_dim)
        return 2 * (self.head_dim + self.v_head_dim)

    def flops(self, backward: bool) -> float:
        """FLOPs of a pass."""
        return self.score_flops(backward) * self.pairs * self.heads * self.batch

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V of one rank."""
        return self.batch * self.own * self.kv_heads * self._widths * ELEMENT_BYTES

    @property
    def kv_gradient_bytes(self) -> int:
        """Bytes of the f32 gradients of K and V of one rank."""
        return self.batch * self.own * self.kv_heads * self._widths * 4

    @property
    def q_bytes(self) -> int:
        """Bytes of q of one rank."""
        return self.batch * self.own * self.heads * self.head_dim * ELEMENT_BYTES

    @property
    def o_bytes(self) -> int:
        """Bytes of O of one rank, in q's dtype."""
        return self.batch * self.own * self.heads * self.v_head_dim * ELEMENT_BYTES

    @property
    def _widths(self) -> int:
        return self.head_dim + self.v_head_dim
