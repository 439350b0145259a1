"""Runs of positions, and the calls that pairs of them amount to."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import attn_mlir as am
from attn_mlir.distributed.layouts import Runs, runs_of, tokens_of
from attn_mlir.distributed.pieces import Piece, pieces_of

MASKS = {
    "full": None,
    "causal": am.causal(),
    "window": am.sliding_window(5, 0),
    "both sides": am.sliding_window(3, 4),
    "chunked": am.chunked(7),
    "prefix": am.prefix_lm(9),
}
STARTS = (0, 3, 4, 17, 30)


def places(runs: Runs) -> np.ndarray:
    return np.concatenate([np.arange(x.start, x.stop) for x in runs])


def shown(piece: Piece, mask: am.Mask | None, rows: int, keys: int) -> np.ndarray:
    """How often a piece computes each score, [rows, keys] of the rank and the source."""
    found = np.zeros((rows, keys), int)
    if piece.documents:
        row, key = piece.rows.start, piece.keys.start
        for document in piece.documents:
            q, k = np.array(document.queries)[:, None], np.array(document.keys, int)[None]
            kept = np.ones((q.size, k.size), bool)
            kept = kept if mask is None else mask.visible(q, k, 99, 99) & kept
            found[row : row + q.size, key : key + k.size] += kept
            row, key = row + q.size, key + k.size
        return found
    q, k = np.arange(len(piece.rows))[:, None], np.arange(len(piece.keys))[None]
    sizes = len(piece.rows), len(piece.keys)
    if piece.offsets is not None:
        q, k, sizes = q + piece.offsets[0], k + piece.offsets[1], (99, 99)
    kept = np.ones(np.broadcast_shapes(q.shape, k.shape), bool)
    if piece.mask is not None:
        kept &= piece.mask.visible(q, k, *sizes)
    found[piece.rows.start : piece.rows.stop, piece.keys.start : piece.keys.stop] += kept
    return found


@pytest.mark.parametrize("starts", [None, STARTS], ids=["one", "documents"])
@pytest.mark.parametrize("positional", [False, True], ids=["plain", "positional"])
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("name", MASKS)
def test_pieces_of_all_sources_compute_each_visible_score_once(
    name: str, layout: str, positional: bool, starts: tuple[int, ...] | None
) -> None:
    length, mask = 30, MASKS[name]
    at = np.arange(length)
    document = np.searchsorted(STARTS, at, "right") if starts else np.zeros(length)
    inside = at - (np.array(STARTS)[np.searchsorted(STARTS, at, "right") - 1] if starts else 0)
    want = np.ones((length, length), bool)
    if mask is not None:
        want = mask.visible(inside[:, None], inside[None], length, length)
    want = want & (document[:, None] == document[None])
    for size in (1, 2, 3, 4):
        runs = [runs_of(length, size, rank, layout) for rank in range(size)]
        natural: Runs = (range(length),)
        halves = tuple(x[i] for i in range(len(runs[0]))[::-1] for x in runs)
        for own in runs:
            for keys in (*runs, natural, halves):
                found = np.zeros((tokens_of(own), tokens_of(keys)), int)
                for piece in pieces_of(own, keys, mask, positional=positional, starts=starts):
                    found += shown(piece, mask, *found.shape)
                assert (found == want[np.ix_(places(own), places(keys))]).all(), (own, keys)


def test_zigzag_steps_are_one_call_each_of_equal_work() -> None:
    size, length = 4, 64
    runs = [runs_of(length, size, rank, "zigzag") for rank in range(size)]
    for own in runs:
        for source in runs:
            (piece,) = pieces_of(own, source, am.causal())
            scores = len(piece.rows) * len(piece.keys)
            assert piece.offsets is None
            assert scores == (256 if own == source else 128)


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("length", [0, 1, 5, 24, 61])
def test_every_position_lies_on_one_rank(length: int, layout: str) -> None:
    for size in (1, 2, 3, 4):
        runs = [x for rank in range(size) for x in runs_of(length, size, rank, layout)]
        assert sorted(places(tuple(runs))) == list(range(length))
