"""The calls of attention that one rank's queries and some keys amount to.

Queries and keys are runs of positions. A pair of runs that the mask shows whole needs no positions,
one that it hides needs no call, and any other one is a call with `q_offset` and `k_offset`. Keys
that lie side by side and are seen whole are one call, as are queries that see the same keys.

causal, zigzag, 2 ranks, 8 tokens: rank 0 has 0 1 6 7, rank 1 has 2 3 4 5.

    rank 0, own keys    one causal call: local order is that of positions
    rank 0, of rank 1   queries 6 7, keys 2 3 4 5, no mask
    rank 1, of rank 0   queries 2 3 4 5, keys 0 1, no mask
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from attn_mlir.dialect.attn.masks import INTS, CausalMask, NullMask, WindowMask
from attn_mlir.dialect.attn.masks.shifted import shifted
from attn_mlir.distributed.layouts import Runs
from attn_mlir.masks import Mask

HIDDEN, PARTIAL, WHOLE = "hidden", "partial", "whole"
BY_DISTANCE = CausalMask, WindowMask  # masks of k - q alone


class Document(NamedTuple):
    """The queries and the keys of one document in a piece: positions within it."""

    queries: range
    keys: range


@dataclass(frozen=True)
class Piece:
    """One call of attention.

    Attributes:
      rows, keys: where its queries and its keys lie among those of the rank and of the source.
      mask: aligned at the end of rows and keys, if there are no offsets.
      offsets: positions of the first query and the first key; None: no position matters.
      documents: of which rows and keys consist, where they are several.
    """

    rows: range
    keys: range
    mask: Mask | None = None
    offsets: tuple[int, int] | None = None
    documents: tuple[Document, ...] = ()


class _Placed(NamedTuple):
    """A run of positions, and where it begins in memory."""

    place: int
    run: range


@lru_cache(maxsize=4096)
def pieces_of(
    row_runs: Runs,
    key_runs: Runs,
    mask: Mask | None,
    *,
    positional: bool = False,
    starts: tuple[int, ...] | None = None,
) -> tuple[Piece, ...]:
    """The calls for queries at these positions and keys at those, each in the order of memory.

    Args:
      mask: over positions; over those within documents where there are such.
      positional: whether modifiers look at positions.
      starts: where documents begin, and the length.
    """
    is_own = row_runs == key_runs and _ascend(row_runs)
    if is_own and starts is None and not positional and isinstance(mask, CausalMask):
        whole = range(sum(map(len, row_runs)))
        return (Piece(whole, whole, mask),) if whole else ()
    keys, found = _placed(key_runs), list[Piece]()
    is_by_runs = isinstance(mask, BY_DISTANCE) and starts is None and not positional
    for rows in _placed(row_runs, joined=not is_by_runs):
        found += _joined_keys(_of_rows(rows, keys, mask, positional, starts))
    return tuple(_joined_rows(found))


def blocks_of(row_runs: Runs) -> tuple[range, ...]:
    """Rows whose pieces are the same or disjoint: those of each run, where they lie in memory."""
    return tuple(range(x.place, x.place + len(x.run)) for x in _placed(row_runs, joined=False))


def sight(mask: Mask | None, rows: range, keys: range) -> str:
    """Whether a mask hides or shows all scores of queries and keys at these positions."""
    if not keys:
        return HIDDEN
    if mask is None or isinstance(mask, NullMask):
        return WHOLE
    at = shifted(mask, rows.start, keys.start)
    span = at.tile_range(INTS, 0, len(rows), len(rows), len(keys), len(keys))
    if span.end <= span.begin:
        return HIDDEN
    return WHOLE if span.full_begin <= 0 and span.full_end >= 1 else PARTIAL


def _of_rows(
    rows: _Placed,
    keys: Sequence[_Placed],
    mask: Mask | None,
    positional: bool,
    starts: tuple[int, ...] | None,
) -> Iterator[Piece]:
    """The pieces of one run of queries."""
    for source in keys:
        queries, seen, documents = rows.run, source.run, tuple[Document, ...]()
        if starts is not None:
            documents = _documents(queries, seen, starts)
            if not any(x.keys for x in documents):
                continue
            if len(documents) == 1:
                (queries, seen), documents = documents[0], ()
        at = range(rows.place, rows.place + len(rows.run))
        place = source.place
        if starts is not None:
            place += _first_key(rows.run, source.run, starts) - source.run.start
        if documents:
            count = sum(len(x.keys) for x in documents)
            yield Piece(at, range(place, place + count), mask, documents=documents)
            continue
        if not positional and _hides_later(mask):
            seen = range(seen.start, max(seen.start, min(seen.stop, queries.stop)))
        kind, columns = sight(mask, queries, seen), range(place, place + len(seen))
        if kind == HIDDEN:
            continue
        offsets = queries.start, seen.start
        if kind == WHOLE:
            yield Piece(at, columns, None, offsets if positional else None)
        elif isinstance(mask, BY_DISTANCE) and queries.stop == seen.stop and not positional:
            yield Piece(at, columns, mask)
        else:
            yield Piece(at, columns, mask, offsets)


def _hides_later(mask: Mask | None) -> bool:
    """Whether no query sees a key behind it; without these keys masks are aligned at the end."""
    return isinstance(mask, CausalMask) or (isinstance(mask, WindowMask) and mask.right == 0)


def _documents(rows: range, keys: range, starts: Sequence[int]) -> tuple[Document, ...]:
    """The documents that the queries lie in, with their keys among these."""
    found = list[Document]()
    for begin, end in pairwise(starts):
        queries = range(max(begin, rows.start) - begin, min(end, rows.stop) - begin)
        if queries:
            seen = range(max(begin, keys.start) - begin, min(end, keys.stop) - begin)
            found.append(Document(queries, seen if seen else range(0)))
    return tuple(found)


def _first_key(rows: range, keys: range, starts: Sequence[int]) -> int:
    """The position of the first key in any document of the queries."""
    first = max(x for x in starts if x <= rows.start)
    return max(first, keys.start)


def _placed(runs: Runs, *, joined: bool = True) -> list[_Placed]:
    """Runs with tokens, and their places; joined, those that continue one another are one."""
    found, place = list[_Placed](), 0
    for run in runs:
        if joined and found and run and found[-1].run.stop == run.start:
            found[-1] = _Placed(found[-1].place, range(found[-1].run.start, run.stop))
        elif run:
            found.append(_Placed(place, run))
        place += len(run)
    return found


def _ascend(runs: Runs) -> bool:
    return all(a.stop <= b.start for a, b in pairwise(x for x in runs if x))


def _is_plain(piece: Piece) -> bool:
    return piece.mask is None and piece.offsets is None and not piece.documents


def _joined_keys(pieces: Iterator[Piece]) -> list[Piece]:
    """Pieces of the same rows; keys side by side that are seen whole become one."""
    found = list[Piece]()
    for piece in pieces:
        last = found[-1] if found else None
        if last and _is_plain(last) and _is_plain(piece) and last.keys.stop == piece.keys.start:
            found[-1] = Piece(piece.rows, range(last.keys.start, piece.keys.stop))
        else:
            found.append(piece)
    return found


def _joined_rows(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces of the same keys, which rows side by side see whole, become one."""
    found = list[Piece]()
    for piece in pieces:
        for i, other in enumerate(found):
            is_same = other.keys == piece.keys and other.rows.stop == piece.rows.start
            if is_same and _is_plain(other) and _is_plain(piece):
                found[i] = Piece(range(other.rows.start, piece.rows.stop), piece.keys)
                break
        else:
            found.append(piece)
    return found
