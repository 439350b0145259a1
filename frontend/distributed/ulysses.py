"""Ulysses: each rank gets all tokens of some heads, and returns O of each rank's tokens."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from attn_mlir.calls import attention
from attn_mlir.distributed.layouts import indices, tokens_of
from attn_mlir.distributed.members import Members
from attn_mlir.distributed.operands import Shards
from attn_mlir.distributed.packing import bits_of, numbers_of
from attn_mlir.distributed.preparing import Operands, prepare_attention, prepare_gradients
from attn_mlir.distributed.problem import Problem
from attn_mlir.distributed.transport import Transport, transport_of
from attn_mlir.trace import trace_sources

torch: Any = importlib.import_module("torch")


Attend = Callable[[Any, Any, int], tuple[Any, Any]]  # ((q, k, v), sinks, first head) to (O, LSE)


class _Swap(torch.autograd.Function):
    """Part i of [ranks, ...] goes to rank i; gradients go back the same way."""

    @staticmethod
    def forward(ctx: Any, send: Any, members: Members, transport: Transport) -> Any:
        ctx.at = members, transport
        return transport.swap(send.contiguous())

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None, None]:
        members, transport = ctx.at
        with members.watched("the backward pass of ulysses_attention"):
            return transport.swap(gradient.contiguous()), None, None


def exchange_heads(
    members: Members, shards: Shards, operands: tuple[Any, Any, Any], sinks: Any, attend: Attend
) -> tuple[Any, Any]:
    """O [batch, own tokens, heads, v_head_dim] and LSE [batch, heads, own tokens].

    Args:
      attend: computes O and LSE of this rank's heads for all tokens, in the order of positions.
    """
    q, k, v = operands
    rank, size = members.rank, members.size
    heads, own = q.shape[2] // size, q.shape[1]
    repeats = repeats_of(k, size)
    if repeats > 1:
        k, v = (x.repeat_interleave(repeats, 2) for x in (k, v))
    order, back = _orders(shards, q.device)
    sent = [_by_heads(x, size, shards.most) for x in (q, k, v)]
    widths = [x[0, 0, 0].numel() for x in sent]
    together = torch.cat([x.flatten(3) for x in sent], 3)  # [ranks, batch, tokens, columns]
    if size > 1:
        together = _Swap.apply(together, members, transport_of(members, q.device))
    tokens = together.transpose(0, 1).flatten(1, 2)  # [batch, ranks x tokens, columns]
    tokens = tokens if order is None else tokens[:, order]
    of_heads = [
        x.unflatten(2, (-1, original.shape[3]))
        for x, original in zip(tokens.split(widths, 2), (q, k, v), strict=True)
    ]
    own_sinks = None if sinks is None else sinks[rank * heads : (rank + 1) * heads]
    o, lse = attend(of_heads, own_sinks, rank * heads)
    columns = torch.cat([o.flatten(2), bits_of(lse.transpose(1, 2), o.dtype)], 2)
    if back is not None:
        columns = columns[:, back]
    parts = columns.unflatten(1, (size, shards.most)).transpose(0, 1)
    if size > 1:
        parts = _Swap.apply(parts, members, transport_of(members, q.device))
    parts = parts[:, :, :own].movedim(0, 2)  # [batch, own tokens, ranks, columns]
    width = heads * v.shape[3]
    o = parts[..., :width].unflatten(3, (heads, -1)).flatten(2, 3)
    lse = numbers_of(parts[..., width:]).flatten(2).transpose(1, 2)
    return o, lse


def prepare_heads(
    members: Members, problem: Problem, shards: Shards, operands: tuple[Any, Any, Any], sinks: Any
) -> None:
    """Plans and compiles the kernels of `exchange_heads`.

    Raises:
      AttnError: the call has no kernel, or the kernel cannot be compiled.
    """
    q, k, v = operands
    size = members.size
    heads = q.shape[2] // size, k.shape[2] * repeats_of(k, size) // size
    packed = problem.starts is not None
    given = Operands.of(q, k, v).cut(shards.length, shards.length, heads=heads, packed=packed)
    own = None if sinks is None else sinks.detach()[: heads[0]]
    options = _options(problem, own, 0, q.device)
    prepare_attention(given, options)
    captured = trace_sources(options["score_mod"], options["mask_mod"])[1]
    trained = [name for name, x in captured.items() if getattr(x, "requires_grad", False)]
    if torch.is_grad_enabled() and (trained or any(x.requires_grad for x in operands)):
        del options["return_lse"]
        prepare_gradients(given, {**options, "captured": tuple(trained)})


def repeats_of(k: Any, size: int) -> int:
    """How many times each head of K is repeated, so that the number of ranks divides the heads."""
    return math.lcm(k.shape[2], size) // k.shape[2]


def attend_heads(problem: Problem, operands: Any, sinks: Any, head: int) -> tuple[Any, Any]:
    """Attention of whole sequences.

    Args:
      operands: q, k and v of this rank's heads.
      head: the number of the first of these heads among all heads of q.
    """
    q, k, v = operands
    options = _options(problem, sinks, head, q.device)
    if problem.starts is None:
        return attention(q, k, v, **options)
    o, lse = attention(q[0], k[0], v[0], **options)
    return o[None], lse[None]


def _options(problem: Problem, sinks: Any, head: int, device: Any) -> dict[str, Any]:
    """The options of `attention` for the heads from `head` on."""
    problem = problem.of_heads(head, device)
    options: dict[str, Any] = {
        "mask": problem.mask,
        "score_mod": problem.score_mod,
        "mask_mod": problem.mask_mod,
        "sinks": sinks,
        "scale": problem.scale,
        "device": problem.device,
        "return_lse": True,
        "deterministic": True,
    }
    if problem.starts is not None:
        starts = torch.tensor(problem.starts, dtype=torch.int32, device=device)
        most = max(b - a for a, b in pairwise(problem.starts))
        for side in "qk":
            options |= {f"cu_seqlens_{side}": starts, f"max_seqlen_{side}": most}
    return options


def _by_heads(x: Any, size: int, most: int) -> Any:
    """[ranks, batch, most, heads / ranks, D], padded to `most` tokens."""
    if x.shape[1] < most:
        x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, most - x.shape[1]))
    return x.unflatten(2, (size, -1)).movedim(2, 0)


@functools.lru_cache(maxsize=16)
def _orders(shards: Shards, device: Any) -> tuple[Any, Any]:
    """The slot of each position in the padded [ranks x tokens], and the position in each slot.

    Slots of padding have any position. Both results are None if the permutations are the identity.
    """
    most, size = shards.most, len(shards.runs)
    by_rank = [indices(x) for x in shards.runs]
    places = torch.cat(
        [rank * most + torch.arange(tokens_of(x)) for rank, x in enumerate(shards.runs)]
    )
    order, back = torch.empty(shards.length, dtype=torch.int64), torch.zeros(size * most).long()
    order[torch.cat(by_rank)] = places
    back[places] = torch.cat(by_rank)
    if size * most == shards.length and bool((order == torch.arange(shards.length)).all()):
        return None, None
    return order.to(device), back.to(device)
