"""Patterns of reads of captured tensors: those of known reads, and that drawn ones hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_mlir import mods
from attn_mlir import trace as tr
from attn_mlir.dialect.attn.programs.derivative import differentiated
from attn_mlir.dialect.attn.programs.evaluation import evaluate
from attn_mlir.dialect.attn.programs.program import ARGUMENTS, CapturedTensor, Node
from attn_mlir.dialect.attn.programs.reads import Pattern, pattern_of
from attn_mlir.dialect.attn.programs.rewriting import extracted
from attn_mlir.trace import trace

ROW, TABLE, CUBE = (np.ones(shape, np.float32) for shape in ((9,), (9, 9), (9, 9, 9)))
LOGITS, IDS = np.ones((2, 3, 4, 5), np.float32), np.arange(9, dtype=np.int32)

READS: list[tuple[Any, Pattern, tuple[str | None, ...]]] = [
    (mods.alibi(4), Pattern.HEAD, ("head",)),
    (mods.alibi(np.ones((2, 4), np.float32)), Pattern.HEAD, ("batch", "head")),
    (lambda s, b, h, q, k: s + ROW[0], Pattern.HEAD, (None,)),
    (lambda s, b, h, q, k: s + ROW[IDS[h] // 2 + b], Pattern.HEAD, (None,)),
    (lambda s, b, h, q, k: s + TABLE[h, q], Pattern.QUERY, ("head", "q")),
    (lambda s, b, h, q, k: s + ROW[IDS[q]], Pattern.QUERY, (None,)),
    (lambda s, b, h, q, k: s + TABLE[q, q // 2], Pattern.QUERY, ("q", None)),
    (lambda s, b, h, q, k: s + ROW[k], Pattern.KEY, ("k",)),
    (lambda s, b, h, q, k: s + TABLE[IDS[k] - h, b], Pattern.KEY, (None, "batch")),
    (mods.bias(np.ones((2, 3, 4, 5), np.float32)), Pattern.SCORE, ("batch", "head", "q", "k")),
    (mods.bias(np.ones((1, 3, 4, 5), np.float32)), Pattern.BROADCAST, (None, "head", "q", "k")),
    (mods.bias(TABLE), Pattern.BROADCAST, ("q", "k")),
    (lambda s, b, h, q, k: s + CUBE[k, IDS[h], q], Pattern.BROADCAST, ("k", None, "q")),
    (mods.relative_bias(TABLE), Pattern.DISTANCE, ("head", None)),
    (lambda s, b, h, q, k: s + ROW[abs(q - k)], Pattern.DISTANCE, (None,)),
    (lambda s, b, h, q, k: s + ROW[k - (q + IDS[b] + 3)], Pattern.DISTANCE, (None,)),
    (lambda s, b, h, q, k: s + ROW[2 * q + 1 - k * 2], Pattern.DISTANCE, (None,)),
    (lambda s, b, h, q, k: s + ROW[tr.log((q - k + 9).float()).int()], Pattern.DISTANCE, (None,)),
    (lambda s, b, h, q, k: s + ROW[tr.where(q > k, 1, 2)], Pattern.SCATTER, (None,)),
    (lambda s, b, h, q, k: s + ROW[tr.where(q - k > 0, 1, 2)], Pattern.DISTANCE, (None,)),
    (lambda s, b, h, q, k: s + ROW[q + k], Pattern.SCATTER, (None,)),
    (lambda s, b, h, q, k: s + ROW[2 * q - k], Pattern.SCATTER, (None,)),
    (lambda s, b, h, q, k: s + TABLE[IDS[q], IDS[k]], Pattern.SCATTER, (None, None)),
    (lambda s, b, h, q, k: s + TABLE[q + 1, k], Pattern.SCATTER, (None, "k")),
    (lambda s, b, h, q, k: s + ROW[s.int()], Pattern.SCATTER, (None,)),
    (mods.relative_logits(LOGITS), Pattern.SCATTER, ("batch", "q", "head", None)),
]  # fmt: skip


@pytest.mark.parametrize(("mod", "pattern", "axes"), READS)
def test_patterns(mod: Any, pattern: Pattern, axes: tuple[str | None, ...]) -> None:
    program, _ = trace(mod)
    assert program is not None
    (read,) = differentiated(program).reads
    assert (read.pattern, read.axes) == (pattern, axes)


EXTENTS = {"batch": 2, "head": 3, "q": 7, "k": 6}
ARGUMENT_NODES = [
    Node("argument", "f32" if name == "score" else "i32", value=name) for name in ARGUMENTS
]
TENSORS = (CapturedTensor("ids", "i32", 1),)


@st.composite
def coordinates(draw: st.DrawFn) -> tuple[list[Node], list[int]]:
    """Nodes, and the coordinates of a read among them, made of arguments and distances."""
    nodes = list(ARGUMENT_NODES)
    batch, head, q, k = range(1, 5)

    def add(op: str, *args: int, value: Any = None) -> int:
        kind = "i1" if op == "lt" else "i32"
        nodes.append(Node(op, kind, args, value))
        return len(nodes) - 1

    def expression(depth: int) -> int:
        leaves, operations = (
            ["argument", "distance"],
            ["double", "load", "abs", "add", "min", "where"],
        )
        kind = draw(st.sampled_from(leaves + operations * (depth < 3)))
        if kind == "argument":
            return draw(st.sampled_from([batch, head, q, k]))
        if kind == "distance":
            return add("sub", *draw(st.sampled_from([(q, k), (k, q), (q, head), (head, k)])))
        first = expression(depth + 1)
        if kind == "double":
            return add("mul", first, add("constant", value=2))
        if kind in ("load", "abs"):
            return add(kind, first, value=0 if kind == "load" else None)
        second = expression(depth + 1)
        if kind == "where":
            return add("where", add("lt", first, second), first, second)
        return add(kind, first, second)

    return nodes, [expression(0) for _ in range(draw(st.integers(1, 4)))]


def test_patterns_hold_of_drawn_reads() -> None:
    """On a grid of scores, by the coordinates that a read has there."""
    seen: set[Pattern] = set()
    shape = tuple(EXTENTS.values())
    grid = dict(zip(EXTENTS, np.ix_(*map(np.arange, shape)), strict=True))
    tensors = {"ids": np.random.default_rng(0).integers(-3, 9, 5).astype(np.int32)}

    def check_one(nodes: list[Node], places: list[int]) -> None:
        pattern = pattern_of(nodes, places)
        seen.add(pattern)
        programs = [extracted(nodes, TENSORS, place) for place in places]
        found = [evaluate(p, {"score": 0.0, **grid}, tensors).score for p in programs]
        assert holds(pattern, np.stack([np.broadcast_to(x, shape) for x in found]))

    @settings(max_examples=1000, deadline=None, database=None)
    @given(coordinates())
    def check(drawn: tuple[list[Node], list[int]]) -> None:
        check_one(*drawn)

    check()
    check_one(ARGUMENT_NODES, [3, 1, 2, 4])
    check_one(ARGUMENT_NODES, [4, 2, 3])
    assert seen == set(Pattern)


def holds(pattern: Pattern, places: np.ndarray[Any, Any]) -> bool:
    """Whether coordinates [axes, batch, heads, q, k] are as a pattern says."""
    of_rows, of_columns = (np.diff(places, axis=axis).any() for axis in (-1, -2))
    match pattern:
        case Pattern.HEAD:
            return not (of_rows or of_columns)
        case Pattern.QUERY:
            return not of_rows
        case Pattern.KEY:
            return not of_columns
        case Pattern.DISTANCE:
            return bool((places[..., 1:, 1:] == places[..., :-1, :-1]).all())
        case Pattern.BROADCAST | Pattern.SCORE:
            flat = places.reshape(len(places), *places.shape[1:3], -1)
            if pattern is Pattern.SCORE:
                flat = places.reshape(len(places), 1, 1, -1)
            counts = {
                len(np.unique(flat[:, b, h], axis=1).T) for b, h in np.ndindex(*flat.shape[1:3])
            }
            return counts == {flat.shape[-1]}
        case Pattern.SCATTER:
            return True


def test_a_tensor_read_at_several_places_has_a_pattern_for_each() -> None:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * TABLE[h, q] + TABLE[h, k] * ROW[h]

    program, _ = trace(mod)
    assert program is not None
    derivative = differentiated(program)
    found = {(derivative.tensors[r.tensor].name, r.pattern) for r in derivative.reads}
    names = {"TABLE", "ROW"}
    assert {name for name, _ in found} == names
    assert found == {("TABLE", Pattern.QUERY), ("TABLE", Pattern.KEY), ("ROW", Pattern.HEAD)}
