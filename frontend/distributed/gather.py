"""All-gather: every rank gets K and V of the whole sequence, then calls attention a few times.

Zigzag shards are gathered as [second halves by rank, first halves by rank]: of chunks 2P - 1 ... P
and 0 ... P - 1. Under a causal mask the keys that a chunk sees whole are one range of this order,
so nothing is reordered.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from attn_mlir.distributed.autograd import Keys, Scheme
from attn_mlir.distributed.layouts import Runs, indices, tokens_of
from attn_mlir.distributed.operands import Message
from attn_mlir.distributed.pieces import Piece
from attn_mlir.distributed.transport import transport_of

torch: Any = importlib.import_module("torch")


class Gather(Scheme):
    """One source: the keys of all ranks."""

    def plans(self) -> Sequence[Sequence[Piece]]:
        own = self.shards.runs[self.members.rank]
        return [self.problem.pieces(own, self._order)]

    @cached_property
    def _in_halves(self) -> bool:
        """Whether halves of shards are gathered by themselves; else keys are put in their order."""
        is_plain = not self.problem.positional and self.problem.starts is None
        return is_plain and self.shards.is_even and len(self.shards.runs[0]) == 2

    @cached_property
    def _order(self) -> Runs:
        """The positions of gathered keys, in memory."""
        runs = self.shards.runs
        if self._in_halves:
            return tuple(x[half] for half in (1, 0) for x in runs)
        return (range(self.shards.length),)

    def keys(self, k: Any, v: Any) -> Iterator[Keys]:
        (plan,) = self.plans()
        size = self.members.size
        if size == 1 and len(self._order) == 1:
            yield plan, self._sorted(k), self._sorted(v)
            return
        transport, batch = transport_of(self.members, k.device), k.shape[0]
        if self._in_halves and batch == 1:
            half = self.shards.most // 2
            wholes = [x.new_empty((2, size, half, *x.shape[2:])) for x in (k, v)]
            parts = [x[0].view(2, half, *x.shape[2:]) for x in (k.contiguous(), v.contiguous())]
            pairs = [(w[i], x[1 - i]) for w, x in zip(wholes, parts, strict=True) for i in (0, 1)]
            transport.gather(pairs)()
            yield plan, *(x.flatten(0, 2)[None] for x in wholes)
            return
        message = Message(k, v, self.shards.most)
        own = message.packed(k, v)
        whole = own.new_empty((size, *own.shape))
        transport.gather([(whole, own)])()
        of_ranks = [
            message.parts(whole[rank], tokens_of(self.shards.runs[rank])) for rank in range(size)
        ]
        yield (
            plan,
            *(torch.cat(x, 1)[:, self._places(k.device)] for x in zip(*of_ranks, strict=True)),
        )

    def gradients(self, k: Any, v: Any, of_keys: Any) -> tuple[Any, Any]:
        """Each rank gets the gradients of its keys from all others, and adds them by rank."""
        (keys,) = self.keys(k, v)
        found = of_keys(*keys)
        message, device = Message(k, v, self.shards.most), k.device
        places = self._places(device)
        for_ranks: list[Any] = []
        sorted_back = [torch.empty_like(x) for x in found]
        for target, x in zip(sorted_back, found, strict=True):
            target[:, places] = x
        begin = 0
        for runs in self.shards.runs:
            end = begin + tokens_of(runs)
            for_ranks.append(message.packed(*(x[:, begin:end] for x in sorted_back)))
            begin = end
        if self.members.size == 1:
            received = torch.stack(for_ranks)
        else:
            received = transport_of(self.members, device).swap(torch.stack(for_ranks))
        total = received[0]
        for part in received[1:]:
            total = total + part
        dk, dv = message.parts(total, k.shape[1])
        return dk, dv

    def _places(self, device: Any) -> Any:
        """For each gathered key in its order, where it lies among the shards by rank."""
        where = torch.empty(self.shards.length, dtype=torch.int64)
        by_rank = indices([run for runs in self.shards.runs for run in runs])
        where[by_rank] = torch.arange(self.shards.length)
        return where[indices(self._order)].to(device)

    def _sorted(self, x: Any) -> Any:
        return x[:, self._places(x.device)] if len(self.shards.runs[0]) > 1 else x
