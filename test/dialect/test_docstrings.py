"""Operations are documented by an example, and the example is right."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import ir, make_context

HERE = Path(__file__).parent
OPERATIONS: list[Any] = [*attn.DIALECT.operations, *ws.DIALECT.operations]


def test_the_example_of_mha_is_a_module():
    text = inspect.getdoc(attn.MhaOp) or ""
    example = text.split("Example:\n", 1)[1]
    with make_context():
        module = ir.Module.parse(example)
        assert module.operation.verify()
        assert len(ir.get_ops_of_type(module, attn.MhaOp)) == 1


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.OPERATION_NAME)
def test_an_operation_says_what_it_means(op: Any):
    text = op.__dict__.get("__doc__") or ""
    assert len(text.split()) >= 5, f"{op.OPERATION_NAME} has no description"


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.OPERATION_NAME)
def test_some_test_parses_every_operation(op: Any):
    name = re.escape(op.OPERATION_NAME)
    files = HERE.parent.rglob("*.mlir")
    assert any(re.search(rf'^[^/]*"{name}"', file.read_text(), re.MULTILINE) for file in files)
