"""No file outside the schedules names one: others ask a policy what is so about it."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from attn_mlir.schedules.policy.registry import POLICIES

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("dialect", "frontend", "lowering", "passes", "runtime")
OPERATIONS = {policy.operation for policy in POLICIES}
NAMES = {policy.name for policy in POLICIES} - OPERATIONS  # those that mean nothing else
NAMED = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, sorted(NAMES)))})(?![\w-])")


def documentation(tree: ast.Module) -> set[int]:
    """The strings that stand by themselves: docstrings, of which users read some."""
    nodes = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return {id(node) for node in nodes if isinstance(node, ast.Constant)}


def imported(node: ast.ImportFrom) -> Iterator[str]:
    """What a file imports of the schedules and is the name of one, or has it as a policy does."""
    module = node.module or ""
    if not module.startswith("attn_mlir.schedules"):
        return
    for alias in node.names:
        value = getattr(importlib.import_module(module), alias.name, None)
        if getattr(value, "name", value) in [policy.name for policy in POLICIES]:
            yield alias.name


def found(text: str) -> list[str]:
    """The schedules that the text of a file names, but for its docstrings."""
    tree = ast.parse(text)
    documented = documentation(tree)
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names += imported(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names += NAMED.findall(node.value) if id(node) not in documented else ()
    return names


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_names_a_schedule(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    texts = {path.relative_to(ROOT): path.read_text() for path in files}
    assert {str(path): names for path, text in texts.items() if (names := found(text))} == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("spec.schedule == 'mha-streaming'", ["mha-streaming"]),
        ("f'{x} needs mha-registers'", ["mha-registers"]),
        ("from attn_mlir.schedules.policy.registry import STREAMING, named", ["STREAMING"]),
        ("from attn_mlir.schedules.combine.policy import CombinePolicy", ["CombinePolicy"]),
        ("def f():\n    'Of `mha-streaming`.'", []),
        ("operation = 'mha'", []),
        ("name = 'mla-decode-like'", []),
    ],
)
def test_names_are_found(text: str, names: list[str]) -> None:
    assert found(text) == names
