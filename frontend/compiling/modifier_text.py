"""A score modifier from the text that a bundle keeps of it, checked by evaluating it."""

from __future__ import annotations

import numpy as np

from attn_mlir.dialect.attn.evaluation import evaluate
from attn_mlir.dialect.attn.program import Program
from attn_mlir.errors import SpecError


def read_modifier(text: object) -> Program:
    """A score modifier that can be evaluated.

    Raises:
      SpecError: the text is no program, or its nodes do not fit each other.
    """
    program = _parsed(text)
    zero = np.zeros((1, 1))
    arguments = {"score": zero, "batch": 0, "head": 0, "q": np.array([[0]]), "k": np.array([[0]])}
    try:  # one element meets every node, and so every misfit
        tensors = {tensor.name: np.ones([1] * tensor.rank) for tensor in program.tensors}
        evaluate(program, arguments, tensors)
    except Exception as error:  # numpy and Python have many words for it
        raise SpecError(f"its modifier cannot be evaluated: {error!s:.100}") from error
    return program


def _parsed(text: object) -> Program:
    """The program that a request's modifier is the text of; its nodes may be anything.

    Raises:
      SpecError: it is no text of a program.
    """
    if not isinstance(text, str):
        raise SpecError(f"no program of a score modifier: {text!r:.60}")
    try:
        return Program.from_json(text)
    except (RecursionError, AttributeError) as error:
        raise SpecError(f"no program of a score modifier: {text!r:.60}") from error
