"""Operations are documented by an example, and the example is right."""

import functools
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import ir, make_context

HERE = Path(__file__).parent
OPERATIONS: list[Any] = [*attn.DIALECT.operations, *ws.DIALECT.operations]
DOCUMENTED: list[Any] = [
    attn.MhaOp,
    attn.CombineOp,
    attn.RaggedOp,
    attn.LimitedOp,
    *ws.DIALECT.operations,
]
EXAMPLE = "Example:\n"
CONTINUED = re.compile(r"(?<=[,)])\n\s*(?=[a-z!])|\n\s*(?=[:{]|->)")  # a statement's further lines


@functools.cache
def operations_in_files() -> set[str]:
    """Operations in generic form in the tests' files, comments left out."""
    found: set[str] = set()
    for file in HERE.parent.glob("[!O]*/**/*.mlir"):  # not lit's Output
        found.update(re.findall(r'^[^/\n]*?"([\w.]+)"\(', file.read_text(), re.MULTILINE))
    return found


def split_types(text: str) -> list[str]:
    """Splits at the commas that stand outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<([{") - (character in ">)]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def operand_types(example: str) -> dict[str, str]:
    """Types of the values that operations in generic form take, by name."""
    found: dict[str, str] = {}
    opened: list[list[str]] = []
    for line in CONTINUED.sub(" ", example).splitlines():
        operation = re.search(r'"[\w.]+"\(([^)]*)\)', line)
        operands = split_types(operation[1]) if operation else []
        if line.endswith("({"):
            opened.append(operands)
            continue
        if line.lstrip().startswith("})"):
            operands = opened.pop()
        if " : (" in line:
            types = line[line.rindex(" : (") + 4 : line.rindex(") -> ")]
            found |= dict(zip(operands, split_types(types), strict=True))
    return found


def module_text(example: str) -> str:
    """An example that is no module by itself, in a function of the values that it takes."""
    if example.startswith(("func.func", '"ws.kernel"')):
        return example
    made = set(re.findall(r"^\s*(%\w+) =", example, re.MULTILINE))
    made |= set(re.findall(r"(%\w+):", example))
    taken = {name: kind for name, kind in operand_types(example).items() if name not in made}
    arguments = ", ".join(f"{name}: {kind}" for name, kind in taken.items())
    return f"func.func @example({arguments}) {{\n{example}\nfunc.return\n}}"


def documented_example(op: Any) -> str:
    text = inspect.cleandoc(op.__dict__["__doc__"])
    assert EXAMPLE in text, f"{op.OPERATION_NAME} has no example"
    return inspect.cleandoc(text.split(EXAMPLE, 1)[1])


@pytest.mark.parametrize("op", DOCUMENTED, ids=lambda op: op.OPERATION_NAME)
def test_the_example_is_right(op: Any):
    names: list[str] = []

    def visit(operation: Any) -> Any:
        names.append(operation.name)
        return ir.WalkResult.ADVANCE

    with make_context():
        module = ir.Module.parse(module_text(documented_example(op)))
        assert module.operation.verify()
        module.operation.walk(visit)
    assert op.OPERATION_NAME in names


@pytest.mark.parametrize("op", DOCUMENTED, ids=lambda op: op.OPERATION_NAME)
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
