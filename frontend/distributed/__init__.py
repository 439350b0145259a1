"""Attention of sequences that lie on several GPUs; transport is `torch.distributed`."""

from attn_mlir.distributed.context import context_parallel
from attn_mlir.distributed.decoding import decode_combine
from attn_mlir.distributed.hybrid import ulysses_ring_attention
from attn_mlir.distributed.layouts import positions, shard, unshard
from attn_mlir.distributed.passing_queries import pass_q_attention
from attn_mlir.distributed.schemes import gather_attention, ring_attention, ulysses_attention
from attn_mlir.parallel import plan_parallel

__all__ = [
    "context_parallel",
    "decode_combine",
    "gather_attention",
    "pass_q_attention",
    "plan_parallel",
    "positions",
    "ring_attention",
    "shard",
    "ulysses_attention",
    "ulysses_ring_attention",
    "unshard",
]
