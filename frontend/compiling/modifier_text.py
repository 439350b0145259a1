"""Reads a score modifier from its text in a bundle, and checks it by evaluating it."""

from __future__ import annotations

import numpy as np

from attn_mlir.dialect.attn.programs.evaluation import evaluate
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.errors import SpecError


def read_modifier(text: object) -> Program:
    """The score modifier of a text, which is certain to be valid.

    Raises:
      SpecError: the text is no program, or the types of its nodes do not match.
    """
    program = _parsed(text)
    zero = np.zeros((1, 1))
    arguments = {"score": zero, "batch": 0, "head": 0, "q": np.array([[0]]), "k": np.array([[0]])}
    try:  # a single element evaluates every node, and so finds every mismatch
        tensors = {tensor.name: np.ones([1] * tensor.rank) for tensor in program.tensors}
        evaluate(program, arguments, tensors)
    except Exception as error:  # numpy and Python raise many kinds of errors for it
        raise SpecError(f"its modifier cannot be evaluated: {error!s:.100}") from error
    return program


def _parsed(text: object) -> Program:
    """The program of a modifier's text, with nodes that are not checked yet.

    Raises:
      SpecError: it is not the text of a program.
    """
    if not isinstance(text, str):
        raise SpecError(f"no program of a score modifier: {text!r:.60}")
    try:
        return Program.from_json(text)
    except (RecursionError, AttributeError) as error:
        raise SpecError(f"no program of a score modifier: {text!r:.60}") from error
