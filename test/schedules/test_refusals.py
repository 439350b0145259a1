"""One place writes that there is no kernel: all refusals read alike."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from attn_mlir.errors import no_kernel

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("dialect", "frontend", "lowering", "passes", "runtime", "schedules")
PLACE = "frontend/errors.py"
PHRASE = re.compile(r"\b(has|have)\s+no\s+kernels?\b(?!\.)")  # not the file kernel.cubin


def written(text: str) -> list[str]:
    """The strings of a file that say the phrase, but for its docstrings; pieces of one string that
    follow each other are one.
    """
    tree = ast.parse(text)
    lone = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    documented = {id(node) for node in lone if isinstance(node, ast.Constant)}
    strings = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in documented
    ]
    return [string for string in strings if PHRASE.search(string)]


def test_one_file_writes_the_phrase() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {str(x.relative_to(ROOT)): written(x.read_text()) for x in files}
    assert {path: strings for path, strings in found.items() if strings} == {
        PLACE: ["have no kernel", "has no kernel"]
    }


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("raise SpecError(f'{x} has no kernel: {y}')", 1),
        ("f('a and b have no '\n  'kernel')", 1),
        ("def f():\n    'What has no kernel.'", 0),
        ("x = 'no kernel reads it'", 0),
    ],
)
def test_the_phrase_is_found(text: str, count: int) -> None:
    assert len(written(text)) == count


def test_refusals() -> None:
    assert no_kernel("head_dim 7", "it is odd") == "head_dim 7 has no kernel: it is odd"
    assert no_kernel("", "a", "b") == "has no kernel: a; b"
    assert no_kernel("a 1 and b 2", "no", many=True) == "a 1 and b 2 have no kernel: no"
    assert no_kernel("x 1", "no", context="for y") == "x 1 has no kernel for y: no"
