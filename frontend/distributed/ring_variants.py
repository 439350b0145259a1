"""Schemes of ring-flash-attn: chunks of every document, stripes, and a slice of gathered keys.

    two documents of 8 and 4 tokens, 2 ranks, zigzag       stripes, 2 ranks, 6 tokens
    rank 0: a0 a1 a6 a7 b0 b3                              rank 0: 0 2 4
    rank 1: a2 a3 a4 a5 b1 b2                              rank 1: 1 3 5

All ranks have the same number of tokens. The shards therefore have the shapes of the contiguous
layout, and only the positions of their tokens differ.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from attn_mlir.distributed.gather import Gather
from attn_mlir.distributed.pieces import HIDDEN, WHOLE, Document, Piece, sight
from attn_mlir.distributed.ring import Ring

torch: Any = importlib.import_module("torch")


@dataclass(frozen=True, eq=False)
class Striped(Ring):
    """Token i of a rank is at position i x ranks + rank; the mask is causal, or there is none.

    Key i of a later rank has a larger position than query i of this rank: under a causal mask the
    queries from i + 1 on see it.
    """

    def plans(self) -> Sequence[Sequence[Piece]]:
        rank, size, mask = self.members.rank, self.members.size, self.problem.mask
        count = self.shards.most
        if not count:
            return [()] * size
        whole = Piece(range(count), range(count), mask)
        later = () if count == 1 else (Piece(range(1, count), range(count - 1), mask),)
        sources = [(rank - i) % size for i in range(size)]
        return [later if mask is not None and x > rank else (whole,) for x in sources]

    def blocks(self) -> tuple[range, ...]:
        count = self.shards.most
        return tuple(x for x in (range(min(1, count)), range(1, count)) if x)


@dataclass(frozen=True, eq=False)
class OfEveryDocument(Ring):
    """A rank has one or two chunks of every document; chunks of one number are side by side.

    Attributes:
      lengths: chunk length of each document, in tokens.
      is_zigzag: whether a rank has chunks rank and 2 x ranks - 1 - rank; else only chunk rank.
    """

    lengths: tuple[int, ...]
    is_zigzag: bool

    def plans(self) -> Sequence[Sequence[Piece]]:
        rank, size = self.members.rank, self.members.size
        return [self._pieces(rank, (rank - i) % size) for i in range(size)]

    def blocks(self) -> tuple[range, ...]:
        count = sum(self.lengths)
        return tuple(range(i * count, (i + 1) * count) for i in range(1 + self.is_zigzag) if count)

    def _pieces(self, rank: int, source: int) -> tuple[Piece, ...]:
        found = list[Piece]()
        blocks = self.blocks()
        for rows, mine in zip(blocks, self._chunks(rank), strict=False):
            for keys, other in zip(blocks, self._chunks(source), strict=False):
                documents = tuple(
                    Document(range(mine * x, (mine + 1) * x), range(other * x, (other + 1) * x))
                    for x in self.lengths
                    if x
                )
                kinds = {sight(self.problem.mask, x.queries, x.keys) for x in documents}
                if kinds != {HIDDEN}:
                    mask = None if kinds == {WHOLE} else self.problem.mask
                    found.append(Piece(rows, keys, mask, documents=documents))
        return tuple(found)

    def _chunks(self, rank: int) -> tuple[int, ...]:
        return (rank, 2 * self.members.size - 1 - rank) if self.is_zigzag else (rank,)


@dataclass(frozen=True, eq=False)
class Sliced(Gather):
    """One call of attention of all rows of the rank to a slice of the gathered keys.

    Attributes:
      piece: the call.
    """

    piece: Piece

    def plans(self) -> Sequence[Sequence[Piece]]:
        return [(self.piece,) if self.piece.rows else ()]


def by_halves(starts: Sequence[int], device: Any) -> tuple[Any, Any]:
    """The permutation to [first halves of all documents, second halves], and its inverse.

    Args:
      starts: [documents + 1] offsets of documents; all documents have an even length.
    """
    halves: tuple[list[range], list[range]] = [], []
    for begin, end in pairwise(starts):
        middle = (begin + end) // 2
        halves[0].append(range(begin, middle))
        halves[1].append(range(middle, end))
    order = torch.tensor([i for half in halves for run in half for i in run], dtype=torch.int64)
    return order.to(device), order.argsort().to(device)
