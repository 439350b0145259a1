"""The ring: K and V travel from rank to rank, in the backward pass with their gradients."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from attn_mlir.distributed.autograd import Keys, Scheme
from attn_mlir.distributed.layouts import tokens_of
from attn_mlir.distributed.operands import Message
from attn_mlir.distributed.pieces import Piece
from attn_mlir.distributed.transport import transport_of

torch: Any = importlib.import_module("torch")


class Ring(Scheme):
    """A source is a rank: this one first, then those before it."""

    def plans(self) -> Sequence[Sequence[Piece]]:
        rank, size, runs = self.members.rank, self.members.size, self.shards.runs
        return [self.problem.pieces(runs[rank], runs[(rank - i) % size]) for i in range(size)]

    def keys(self, k: Any, v: Any) -> Iterator[Keys]:
        if self.members.size == 1:
            yield self.plans()[0], k, v
            return
        message = Message(k, v, self.shards.most)
        travelling = transport_of(self.members, k.device).circulate(message.packed(k, v))
        for plan, (source, flat) in zip(self.plans(), travelling, strict=True):
            if source == self.members.rank:
                yield plan, k, v
            else:
                yield plan, *message.parts(flat, tokens_of(self.shards.runs[source]))

    def gradients(self, k: Any, v: Any, of_keys: Any) -> tuple[Any, Any]:
        """Sums in f32 follow the keys, one step behind them, and are home after as many steps.

        Each rank adds its part to the sum of the ranks before, so the order is always the same.
        """
        size, transport = self.members.size, transport_of(self.members, k.device)
        message = Message(k, v, self.shards.most)
        memory = [torch.empty(0)] * 2
        arriving, wait = memory[0], None
        for step, (plan, k_source, v_source) in enumerate(self.keys(k, v)):
            found = of_keys(plan, k_source, v_source)
            if size == 1:
                return found
            own = message.packed(*found)
            if wait is not None:
                wait()
                own += arriving
            arriving = torch.empty_like(own)
            memory[step % 2] = own  # is read until the next step's transfer begins
            wait = transport.shift(own, arriving)
        if wait is not None:
            wait()
        dk, dv = message.parts(arriving, k.shape[1])
        return dk, dv
