"""Operations are documented by an example, and the example is right."""

import functools
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from dialect_pages import DIALECTS, example_of, page, path_of

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import ir, make_context

HERE = Path(__file__).parent
OPERATIONS: list[Any] = [*attn.DIALECT.operations, *ws.DIALECT.operations]


@functools.cache
def operations_in_files() -> set[str]:
    """Operations in generic form in the tests' files, comments left out."""
    found: set[str] = set()
    for file in HERE.parent.glob("[!O]*/**/*.mlir"):  # not lit's Output
        found.update(re.findall(r'^[^/\n]*?"([\w.]+)"\(', file.read_text(), re.MULTILINE))
    return found


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.OPERATION_NAME)
def test_the_example_is_right(op: Any):
    names: list[str] = []

    def visit(operation: Any) -> Any:
        names.append(operation.name)
        return ir.WalkResult.ADVANCE

    with make_context():
        module = ir.Module.parse(example_of(op))
        assert module.operation.verify()
        module.operation.walk(visit)
    assert op.OPERATION_NAME in names


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.OPERATION_NAME)
def test_effects_and_hardware_are_told(op: Any):
    text = inspect.cleandoc(op.__dict__["__doc__"])
    assert "Memory effects: " in text and "Hardware: " in text, op.OPERATION_NAME


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.OPERATION_NAME)
def test_an_operation_says_what_it_means(op: Any):
    text = op.__dict__.get("__doc__") or ""
    assert len(text.split()) >= 5, f"{op.OPERATION_NAME} has no description"


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.OPERATION_NAME)
def test_some_test_parses_every_operation(op: Any):
    assert op.OPERATION_NAME in operations_in_files()


@pytest.mark.parametrize("name", DIALECTS)
def test_the_reference_is_current(name: str):
    """Make it again with: python docs/tools/dialect_pages.py --write."""
    assert path_of(name).read_text() == page(name)


def test_the_reference_has_everything():
    text = "".join(page(name) for name in DIALECTS)
    things = [op.OPERATION_NAME for op in OPERATIONS]
    things += [f"!{kind.type_name}" for d in (attn, ws) for kind in d.DIALECT.types]
    things += [f"#{kind.attr_name}" for d in (attn, ws) for kind in d.DIALECT.attributes]
    assert text.count("### `") == len(things) == text.count("```mlir") - 1
    assert all(f"### `{thing}`" in text for thing in things)
