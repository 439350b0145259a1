"""Attention to sharded keys as one node of autograd's graph."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.distributed.members import Members
from attn_mlir.distributed.merging import Partials
from attn_mlir.distributed.operands import Shards
from attn_mlir.distributed.pieces import Piece, blocks_of
from attn_mlir.distributed.preparing import (
    Operands,
    prepare_attention,
    prepare_gradients,
    prepare_merge,
)
from attn_mlir.distributed.problem import Problem

torch: Any = importlib.import_module("torch")

Keys = tuple[Sequence[Piece], Any, Any]  # calls, K and V; [batch, tokens, kv_heads, head size]


@dataclass(frozen=True, eq=False)
class Scheme(ABC):
    """How the keys of all ranks come to the queries of this one.

    Attributes:
      name: of the public function, for messages.
    """

    name: str
    members: Members
    problem: Problem
    shards: Shards

    @abstractmethod
    def plans(self) -> Sequence[Sequence[Piece]]:
        """The calls for each source of keys, in the order in which the sources arrive."""

    def blocks(self) -> tuple[range, ...]:
        """Ranges of this rank's rows in memory; every piece has all rows of a range, or none."""
        return blocks_of(self.shards.runs[self.members.rank])

    def prepare(self, q: Any, k: Any, v: Any, sinks: Any, *, gradients: bool) -> None:
        """Plans and compiles the kernels of this rank.

        Args:
          q, k, v, sinks: the operands of this rank.
          gradients: whether the backward pass is prepared as well.

        Raises:
          AttnError: a call has no kernel, or a kernel cannot be compiled.
        """
        plans = self.plans()
        pieces = [piece for plan in plans for piece in plan]
        is_one = self.is_one(pieces, q)
        sinks = None if sinks is None else sinks.detach()
        options = {"sinks": sinks} if is_one else {"out_dtype": "f32"}
        views = Operands.of(q, k, v)
        for piece in pieces:
            lengths = len(piece.rows), len(piece.keys)
            given = views.cut(*lengths, packed=bool(piece.documents))
            prepare_attention(given, {**self.problem.options(piece, q.device), **options})
            if gradients:
                options_back = self.problem.gradient_options(piece, q.device)
                prepare_gradients(given, {**options_back, "sinks": sinks})
        if not is_one and q.shape[1]:
            prepare_merge(views, self.problem.device, sinks)

    def is_one(self, pieces: Sequence[Piece], q: Any) -> bool:
        """Whether one call computes all rows, so that nothing is merged."""
        return len(pieces) == 1 and len(pieces[0].rows) == q.shape[1]

    @abstractmethod
    def keys(self, k: Any, v: Any) -> Iterator[Keys]:
        """The keys of all ranks, a source at a time."""

    @abstractmethod
    def gradients(self, k: Any, v: Any, of_keys: Any) -> tuple[Any, Any]:
        """The gradients of this rank's K and V.

        Args:
          of_keys: maps (pieces, k, v) of a source to (dk, dv) in f32: the part of their gradients
            that comes from this rank's queries.
        """


class Sharded(torch.autograd.Function):
    """O and LSE of q, k, v and sinks by a scheme."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, sinks: Any, scheme: Scheme) -> tuple[Any, Any]:
        o, lse = attend(scheme, q, k, v, sinks)
        ctx.save_for_backward(q, k, v, o, lse, sinks)
        ctx.scheme = scheme
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, do: Any, dlse: Any) -> tuple[Any, ...]:
        q, k, v, o, lse, sinks = ctx.saved_tensors
        do = torch.zeros_like(o) if do is None else do.contiguous()
        dlse = None if dlse is None else dlse.contiguous()
        scheme: Scheme = ctx.scheme
        with scheme.members.watched(f"the backward pass of {scheme.name}"):
            dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)

            def of_keys(pieces: Sequence[Piece], k: Any, v: Any) -> tuple[Any, Any]:
                sums = [torch.zeros(x.shape, dtype=torch.float32, device=q.device) for x in (k, v)]
                for piece in pieces:
                    given = (q, k, v, o, lse, do, dlse)
                    found = scheme.problem.gradients(piece, *given, sinks=sinks)
                    rows, keys = (slice(x.start, x.stop) for x in (piece.rows, piece.keys))
                    dq[:, rows] += found.dq
                    sums[0][:, keys] += found.dk
                    sums[1][:, keys] += found.dv
                return sums[0], sums[1]

            dk, dv = scheme.gradients(k, v, of_keys)
        dsinks = None
        if sinks is not None and ctx.needs_input_grad[3]:
            dsinks = _of_sinks(sinks, o, lse, do)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dsinks, None


def attend(scheme: Scheme, q: Any, k: Any, v: Any, sinks: Any) -> tuple[Any, Any]:
    """O in q's dtype and LSE of this rank's queries, merged from the pieces of all sources."""
    problem, plans = scheme.problem, scheme.plans()
    pieces = [piece for plan in plans for piece in plan]
    partials = None
    if not scheme.is_one(pieces, q):
        partials = Partials(q, v.shape[3], scheme.blocks(), plans, problem.device)
    results = None
    for plan, k_source, v_source in scheme.keys(k, v):
        for piece in plan:
            given = (piece, q, k_source, v_source)
            if partials is None:
                results = problem.attend(*given, sinks=sinks)
                continue
            memory, sums = partials.slot(piece)
            _, lse = problem.attend(*given, memory, out_dtype="f32")
            sums.copy_(lse)
    if partials is None:
        assert results is not None
        return results
    return partials.merged(q.dtype, sinks)


def _of_sinks(sinks: Any, o: Any, lse: Any, do: Any) -> Any:
    """The gradient of the sinks' logits: a sink lowers the weights of all keys of a row."""
    delta = (o.float() * do.float()).sum(-1).transpose(1, 2)  # [batch, heads, rows]
    weights = torch.sigmoid(sinks.float()[:, None] - lse)
    return -(weights * delta).sum((0, 2)).to(sinks.dtype)
