"""Random programs of score modifiers, over all operations that tracing records."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from attn_mlir.dialect.attn.programs.program import (
    ARGUMENTS,
    COMPARISONS,
    CapturedTensor,
    Node,
    Program,
)

UNARY = (
    *("neg", "abs", "exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "sqrt", "sin", "cos"),
    *("erf", "floor", "ceil", "round", "trunc", "f16", "bf16"),
)
BINARY = ("add", "sub", "mul", "div", "min", "max", "pow", "mod", "floordiv")
FLOATS = (*UNARY, *BINARY, "where", "cast", "load")
INTEGERS = ("add", "sub", "mul", "min", "max", "and", "or", "xor", "floordiv", "mod", "shl", "shr")
TRUTHS = ("and", "or", "xor", "not")
OTHERS = ("integer", "comparison", "truth", "to_integer")  # operations without a float result
HEADS, QUERIES, KEYS = 3, 5, 4
TENSORS = (
    CapturedTensor("slopes", "f32", 1),  # [heads]
    CapturedTensor("bias", "f32", 2),  # [queries, keys]
    CapturedTensor("ids", "i32", 1),  # [keys]
)


def arrays(random: np.random.Generator) -> dict[str, Any]:
    """The tensors of a drawn program, floats as float64."""
    return {
        "slopes": random.standard_normal(HEADS),
        "bias": random.standard_normal((QUERIES, KEYS)),
        "ids": random.integers(-2, 6, KEYS).astype(np.int32),
    }


def arguments(random: np.random.Generator, count: int) -> dict[str, Any]:
    """Arguments of `count` calls of a program, arrays [count]."""
    extents = {"batch": 2, "head": HEADS, "q": QUERIES, "k": KEYS}
    drawn = {name: random.integers(0, n, count) for name, n in extents.items()}
    return {"score": random.standard_normal(count) * 2, **drawn}


@st.composite
def programs(draw: st.DrawFn, op: str) -> Program:
    """A program of a few operations, the last but two an `op` that derivatives pass through."""
    made = _Drawn(draw)
    for _ in range(draw(st.integers(1, 9))):
        made.add(draw(st.sampled_from((*FLOATS, *FLOATS, *OTHERS))))
    last = made.add(op, active=True)
    first = made.node("tanh", "f32", (last,))
    score = made.node(draw(st.sampled_from(["add", "mul"])), "f32", (first, made.float()))
    return Program(tuple(made.nodes), score, tensors=TENSORS)


class _Drawn:
    """The nodes so far, and draws among them."""

    def __init__(self, draw: st.DrawFn):
        self._draw = draw
        self.nodes: list[Node] = []
        for name in ARGUMENTS:
            self.node("argument", "f32" if name == "score" else "i32", value=name)
        self.active = [0]  # floats that depend on the score or a tensor of floats
        for value in (0.5, -1.5, 2.0):
            self.node("constant", "f32", value=value)
        for value in (0, 1, 3):
            self.node("constant", "i32", value=value)
        self.node("lt", "i1", (3, 4))

    def node(self, op: str, kind: str, args: tuple[int, ...] = (), value: Any = None) -> int:
        """Adds a node."""
        self.nodes.append(Node(op, kind, args, value))
        return len(self.nodes) - 1

    def _one_of(self, kind: str) -> int:
        """A node of a type, late ones more often."""
        known = [number for number, node in enumerate(self.nodes) if node.type == kind]
        return known[-1 - self._draw(st.integers(0, len(known) - 1))]

    def float(self) -> int:
        """A float."""
        return self._one_of("f32")

    def add(self, op: str, *, active: bool = False) -> int:
        """Adds an operation with drawn operands, of which one is `active`, at a drawn place."""
        if op in UNARY:
            args = (self._active() if active else self.float(),)
        elif op in BINARY:
            args = (self._active() if active else self.float(), self.float())
            args = args[::-1] if self._draw(st.booleans()) else args
        else:
            return getattr(self, f"_{op}")()
        number = self.node(op, "f32", args)
        return self._known(number, bool(set(args) & set(self.active)))

    def _active(self) -> int:
        return self._draw(st.sampled_from(self.active))

    def _known(self, number: int, is_active: bool) -> int:
        if is_active:
            self.active.append(number)
        return number

    def _where(self) -> int:
        args = (self._one_of("i1"), self._active(), self.float())
        return self._known(self.node("where", "f32", args), True)

    def _cast(self) -> int:
        kind = self._draw(st.sampled_from(["i32", "i1"]))
        return self.node("cast", "f32", (self._one_of(kind),))

    def _load(self) -> int:
        which = self._draw(st.integers(0, 1))
        args = tuple(self._one_of("i32") for _ in range(TENSORS[which].rank))
        return self._known(self.node("load", "f32", args, which), True)

    def _to_integer(self) -> int:
        if self._draw(st.booleans()):
            return self.node("load", "i32", (self._one_of("i32"),), 2)
        capped = self.node("tanh", "f32", (self.float(),))  # in the range of integers
        return self.node("cast", "i32", (capped,))

    def _integer(self) -> int:
        op = self._draw(st.sampled_from(INTEGERS))
        if op in ("floordiv", "mod", "shl", "shr"):
            return self.node(op, "i32", (self._one_of("i32"), self.nodes.index(THREE)))
        return self.node(op, "i32", (self._one_of("i32"), self._one_of("i32")))

    def _comparison(self) -> int:
        kind = self._draw(st.sampled_from(["f32", "i32"]))
        op = self._draw(st.sampled_from(COMPARISONS))
        return self.node(op, "i1", (self._one_of(kind), self._one_of(kind)))

    def _truth(self) -> int:
        op = self._draw(st.sampled_from(TRUTHS))
        args = tuple(self._one_of("i1") for _ in range(1 if op == "not" else 2))
        return self.node(op, "i1", args)


THREE = Node("constant", "i32", value=3)
