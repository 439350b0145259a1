"""The functions of `attn_mlir.ring_flash_attn` against the whole problem in float64."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from attn_mlir import distributed as ad
from attn_mlir import ring_flash_attn as rfa
from attn_mlir.validation.distributed.cases import DIM, HEADS, ROUNDING

torch: Any = importlib.import_module("torch")
dist: Any = importlib.import_module("torch.distributed")

LENGTH, KV_HEADS = 48, 2
OF_EVEN, OF_ANY = (12, 24, 12), (10, 31, 7)  # documents that 2P divides for 2 and 3 ranks, and any


def check(*names: str) -> dict[str, dict[str, float]]:
    """Errors of this rank in units of the bound.

    Args:
      names: of functions, with `!` for a mask that is not causal, and `<` for a window.
    """
    return {name: _errors(name.rstrip("!<"), name) for name in names}


def _errors(name: str, case: str) -> dict[str, float]:
    torch.manual_seed(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    causal, window = not case.endswith("!"), (9, 0) if case.endswith("<") else (-1, -1)
    is_packed, is_llama3 = "varlen" in name, name.startswith("llama3")
    documents = (OF_ANY if is_llama3 else OF_EVEN) if is_packed else (LENGTH,)
    own = torch.tensor(_positions(name, documents, rank, size))
    heads = HEADS + 2 * KV_HEADS
    whole = torch.randn(1, LENGTH, heads, DIM).bfloat16()
    do = torch.randn(1, LENGTH, HEADS, DIM).bfloat16()
    exact = whole.double().requires_grad_()
    want, want_lse = _exact(exact, documents, causal, window[0])
    (want * do.double()).sum().backward()
    mine = whole[:, own].requires_grad_()
    q, k, v = mine.split([HEADS, KV_HEADS, KV_HEADS], 2)
    packed: tuple[Any, ...] = (q, k, v)
    if "qkvpacked" in name:
        k, v = (x.repeat_interleave(HEADS // KV_HEADS, 2) for x in (k, v))
        packed = (torch.stack([q, k, v], 2),)
    elif "kvpacked" in name:
        packed = q, torch.stack([k, v], 2)
    lengths: tuple[Any, ...] = ()
    if is_packed:
        packed = tuple(x[0] for x in packed)
        local = [x // size for x in documents]
        lengths = torch.tensor([0, *accumulate(local)], dtype=torch.int32), max(local)
    if is_llama3:
        starts = torch.tensor([0, *accumulate(documents)], dtype=torch.int32)
        of_q, of_k, most_q, most_k, keys = rfa.llama3_flash_attn_prepare_cu_seqlens(
            starts, causal, rank, size
        )
        lengths = of_q, of_k, most_q, most_k, 1, keys
    options = {"causal": causal, "window_size": window, "return_attn_probs": True}
    o, lse, nothing = getattr(rfa, name)(*packed, *lengths, **options)
    assert nothing is None
    o, lse = (o[None], lse[None]) if is_packed else (o, lse)
    (o * do[:, own]).float().sum().backward()
    return {
        "o": _error(o, want[:, own]),
        "lse": _error(lse, want_lse[:, :, own]),
        "gradient": _error(mine.grad, exact.grad[:, own], 4),
    }


def _positions(name: str, documents: Sequence[int], rank: int, size: int) -> list[int]:
    """The positions of this rank's tokens."""
    if name.startswith("stripe"):
        return list(range(rank, LENGTH, size))
    if name.startswith("llama3"):
        documents = (LENGTH,)
    layout = "zigzag" if name.startswith("zigzag") else "contiguous"
    begins = [0, *accumulate(documents)][:-1]
    pairs = zip(begins, documents, strict=True)
    return [begin + int(x) for begin, n in pairs for x in ad.positions(n, layout=layout)]


def _exact(x: Any, documents: Sequence[int], causal: bool, left: int) -> tuple[Any, Any]:
    q, k, v = x.split([HEADS, KV_HEADS, KV_HEADS], 2)
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / DIM**0.5
    at = torch.arange(LENGTH)
    number = torch.bucketize(at, torch.tensor([*accumulate(documents)]), right=True)
    shown = number[:, None] == number[None]
    if causal:
        shown = shown & (at[:, None] >= at[None])
    if left >= 0:
        shown = shown & (at[:, None] - at[None] <= left)
    scores = scores.masked_fill(~shown, -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v), scores.logsumexp(-1)


def _error(found: Any, want: Any, factor: float = 2) -> float:
    scale = max(1.0, want.detach().abs().max().item())
    return ((found.detach() - want.detach()).abs().max() / (factor * ROUNDING * scale)).item()
