"""The calls of kernels that `bench/distributed.py` makes, of every rank, in one process.

Tensors have the shapes of a run and arbitrary contents, in memory that is not touched.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import attn_mlir as am
from attn_mlir.distributed.autograd import Keys, Sharded
from attn_mlir.distributed.gather import Gather
from attn_mlir.distributed.layouts import runs_of, tokens_of
from attn_mlir.distributed.merging import merge_states
from attn_mlir.distributed.operands import Shards
from attn_mlir.distributed.problem import Problem
from attn_mlir.distributed.ring import Ring
from attn_mlir.distributed.ulysses import attend_heads

torch: Any = importlib.import_module("torch")


@dataclass
class _Rank:
    """A rank that has no others."""

    rank: int
    size: int

    @contextlib.contextmanager
    def watched(self, call: str) -> Generator[None]:
        del call
        yield


class _Alone:
    """A scheme whose keys are memory of any contents."""

    def keys(self, k: Any, v: Any) -> Iterator[Keys]:
        scheme: Any = self
        runs, size = scheme.shards.runs, scheme.members.size
        tokens = [tokens_of(runs[(scheme.members.rank - i) % size]) for i in range(size)]
        if len(scheme.plans()) == 1:
            tokens = [scheme.shards.length]
        for plan, count in zip(scheme.plans(), tokens, strict=True):
            yield plan, *(x.new_empty((x.shape[0], count, *x.shape[2:])) for x in (k, v))

    def gradients(self, k: Any, v: Any, of_keys: Any) -> tuple[Any, Any]:
        for keys in self.keys(k, v):
            of_keys(*keys)
        return torch.zeros_like(k), torch.zeros_like(v)


class _RingAlone(_Alone, Ring):
    """The calls of `Ring`."""


class _GatherAlone(_Alone, Gather):
    """The calls of `Gather`."""


def call_schemes(
    problem: Problem, shape: Sequence[int], size: int, *, sinks: Any = None, gradients: bool
) -> None:
    """The calls of each rank with every scheme.

    Args:
      shape: tokens of the whole sequence, heads, kv_heads and head size.
    """
    length, heads, kv_heads, dim = shape
    runs = tuple(runs_of(length, size, rank, "zigzag") for rank in range(size))
    shards = Shards(length, runs, max(map(tokens_of, runs)))
    for rank in range(size):
        own = heads // size
        of_heads = (length, own, max(kv_heads // size, 1), dim)
        part = None if sinks is None else sinks[rank * own : (rank + 1) * own]
        attend_and_differentiate(problem, of_heads, rank * own, part, gradients)
        for scheme in (_RingAlone, _GatherAlone):
            alone: Any = _Rank(rank, size)
            made: Any = scheme("benchmark", alone, problem, shards)
            q, k, v = _operands((tokens_of(runs[rank]), heads, kv_heads, dim), gradients)
            o, _ = Sharded.apply(q, k, v, sinks, made)
            if gradients:
                torch.autograd.grad(o, (q, k, v), torch.empty_like(o))


def attend_whole(
    operands: Sequence[Any], starts: Sequence[int] | None, options: Mapping[str, Any]
) -> tuple[Any, Any]:
    """O and LSE of the whole problem on one rank, with which `check` compares the schemes.

    Args:
      operands: q, k and v [1, tokens, heads, head_dim].
      starts: where documents begin, and the length; None without documents.
      options: of `attention`.
    """
    if starts is None:
        return am.attention(*operands, return_lse=True, **options)
    offsets = torch.tensor(starts, dtype=torch.int32, device=operands[0].device)
    lengths: dict[str, Any] = {f"cu_seqlens_{x}": offsets for x in "qk"}
    lengths |= {f"max_seqlen_{x}": starts[-1] for x in "qk"}
    o, lse = am.attention(*(x[0] for x in operands), return_lse=True, **options, **lengths)
    return o[None], lse[None]


def call_whole(
    shape: Sequence[int],
    starts: Sequence[int] | None,
    options: Mapping[str, Any],
    *,
    gradients: bool,
) -> None:
    """The calls of one rank alone, of tensors of a shape as of `call_schemes`."""
    given = _operands(shape, gradients)
    o, _ = attend_whole(given, starts, options)
    if gradients:
        torch.autograd.grad(o, given, torch.empty_like(o))
    if starts is None:  # as it is timed: without LSE
        am.attention(*(x.detach() for x in given), **options)


def attend_and_differentiate(
    problem: Problem, shape: Sequence[int], head: int, sinks: Any, gradients: bool
) -> None:
    """The calls of Ulysses: whole sequences, of some heads."""
    q, k, v = _operands(shape, gradients)
    o, _ = attend_heads(problem, (q, k, v), sinks, head)
    if gradients:
        torch.autograd.grad(o, (q, k, v), torch.empty_like(o))


def call_decode(batch: int, keys: int, heads: int, kv_heads: int, dim: int, size: int) -> None:
    """A step of decode, and the combination of all ranks' results."""
    q, k, v = (
        torch.empty((batch, rows, h, dim), dtype=torch.bfloat16)
        for rows, h in ((1, heads), (keys, kv_heads), (keys, kv_heads))
    )
    am.attention(q, k, v, return_lse=True, num_splits=0)
    parts = torch.empty((size, batch, 1, heads // size, dim))
    sums = torch.empty((size, batch, heads // size, 1))
    merge_states(parts, sums, out_dtype="bfloat16", return_lse=False)


def _operands(shape: Sequence[int], gradients: bool) -> list[Any]:
    tokens, heads, kv_heads, dim = shape
    found = [
        torch.empty((1, tokens, h, dim), dtype=torch.bfloat16) for h in (heads, *[kv_heads] * 2)
    ]
    return [x.requires_grad_(gradients) for x in found]
