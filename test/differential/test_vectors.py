"""Replays programs with results recorded on an H200."""

from __future__ import annotations

from collections import defaultdict

import pytest

from attn_mlir.validation.differential import suite
from attn_mlir.validation.differential.case import Program, load
from attn_mlir.validation.differential.outcome import judged
from attn_mlir.validation.differential.vectors import MAX_BYTES, VECTORS


def _by_family() -> dict[str, list[Program]]:
    groups: dict[str, list[Program]] = defaultdict(list)
    for program in load(VECTORS):
        groups[program.family].append(program)
    return groups


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[Program]]:
    return _by_family()


@pytest.mark.parametrize("family", list(suite.FAMILIES))
def test_replay(recorded: dict[str, list[Program]], family: str):
    """Every recorded program of a family leaves what the GPU left, or stops as it did."""
    programs = recorded[family]
    outcomes = [judged(program) for program in programs]
    assert [problem for outcome in outcomes for problem in outcome.problems] == []
    assert [o.refused for o in outcomes] == [bool(p.error) for p in programs]
    assert programs


def test_a_difference_is_seen(recorded: dict[str, list[Program]]):
    """A result changed in one bit is a difference."""
    program = recorded["integer"][0]
    column = next(c for c in program.columns if c.dtype[0] == "u")
    program.results[column.buffer][column.start] ^= 1
    assert len(judged(program).problems) == 1
    program.results[column.buffer][column.start] ^= 1


def test_vectors_stay_small():
    assert VECTORS.stat().st_size < MAX_BYTES
