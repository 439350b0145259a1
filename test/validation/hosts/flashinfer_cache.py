"""A paged cache of four sequences and attention over it in float64, as FlashInfer's tests call it; needs torch."""

from __future__ import annotations

import importlib
import itertools
import math
from typing import Any

from attn_mlir.validation.numerics.torch_operands import i32, normal

torch: Any = importlib.import_module("torch")

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 64, 16
PAGES = [[3, 1, 5], [0], [], [8, 7, 6, 2]]  # of four sequences, one of which is empty
LENGTHS = [40, 16, 0, 49]
SIZES = (HEADS, KV_HEADS, DIM)
BF16 = torch.bfloat16


def offsets(counts: list[int]) -> Any:
    """Where sequences of these lengths begin, and the end."""
    return i32(0, *itertools.accumulate(counts))


torch.manual_seed(3)
K_PAGES, V_PAGES = normal(9, PAGE, KV_HEADS, DIM), normal(9, PAGE, KV_HEADS, DIM)
BOTH = torch.stack([K_PAGES, V_PAGES], 1)  # NHD
HND = BOTH.transpose(2, 3).contiguous()
INDPTR, INDICES = offsets([len(pages) for pages in PAGES]), i32(*itertools.chain(*PAGES))
LAST = i32(*((n - 1) % PAGE + 1 if n else 0 for n in LENGTHS))
ROWS = (INDPTR, INDICES, LAST)
WORKSPACE = torch.empty(64, dtype=torch.uint8)


def sequence(pool: Any, pages: list[int], length: int) -> Any:
    """Keys or values of one sequence, [positions, kv_heads, D]."""
    return pool[torch.tensor(pages, dtype=torch.long)].flatten(0, 1)[:length]


KEYS = [sequence(K_PAGES, pages, n) for pages, n in zip(PAGES, LENGTHS, strict=True)]
VALUES = [sequence(V_PAGES, pages, n) for pages, n in zip(PAGES, LENGTHS, strict=True)]


def truth(
    queries: list[Any],
    keys: list[Any],
    values: list[Any],
    *,
    causal: bool = False,
    window_left: int = -1,
    cap: float = 0.0,
    scale: float = DIM**-0.5,
    masks: list[Any] | None = None,
    sinks: Any = None,
) -> tuple[Any, Any]:
    """O [tokens, heads, D] and LSE [tokens, heads] in base 2 of all sequences."""
    outputs: list[Any] = []
    sums: list[Any] = []
    for b, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        k, v = (x.double().repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
        scores = cap * torch.tanh(scores / cap) if cap else scores
        own = torch.arange(len(q))[:, None] + len(k) - len(q)
        column = torch.arange(len(k))
        seen = torch.ones(len(q), len(k), dtype=torch.bool)
        seen &= (column <= own) | (not causal)
        seen &= (column >= own - window_left) | (window_left < 0)
        seen &= True if masks is None else masks[b]
        scores = scores.masked_fill(~seen, -torch.inf)
        logits = scores
        if sinks is not None:
            more = sinks.double()[:, None, None].expand(-1, len(q), 1)
            logits = torch.cat([scores, more], -1)
        weights = logits.softmax(-1).nan_to_num()[..., : len(k)]
        sums.append(logits.logsumexp(-1).T / math.log(2))
        outputs.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(outputs), torch.cat(sums)


def check(found: Any, want: tuple[Any, Any]) -> None:
    """Asserts that O and LSE are those wanted, but for rounding."""
    for got, wanted, most in zip(found, want, (0.02, 0.01), strict=True):
        assert got.shape == wanted.shape
        assert torch.equal(got.isinf(), wanted.isinf())
        finite = wanted.isfinite()
        assert (got.double()[finite] - wanted[finite]).abs().max() < most


def split(q: Any, counts: list[int]) -> list[Any]:
    """The queries of each sequence."""
    return list(q.split(counts))


QUERIES = [5, 1, 2, 4]
MASKS = [torch.rand(n, m) < 0.6 for n, m in zip(QUERIES, LENGTHS, strict=True)]


def packed(masks: list[Any]) -> Any:
    """Eight to a byte from the lowest bit on, each sequence from a byte of its own."""
    made: list[int] = []
    for mask in masks:
        bits = mask.flatten().tolist()
        made += [
            sum(bit << i for i, bit in enumerate(bits[at : at + 8]))
            for at in range(0, len(bits), 8)
        ]
    return torch.tensor(made, dtype=torch.uint8)
