"""MLIR's errors as ours, locations as text, and expected diagnostics."""

import re

import pytest

from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.diagnostics import (
    Diagnostic,
    diagnostics_of,
    location_text,
    mlir_errors,
    op_error,
)
from attn_mlir.errors import SpecError, VerifyError
from attn_mlir.passes.attn_opt import split_chunks
from attn_mlir.passes.infrastructure.legality import ATTN, STAGES, Stage, check_stage
from attn_mlir.passes.infrastructure.parse import parse_module
from attn_mlir.passes.infrastructure.verify_diagnostics import check, expectations


def test_an_mlir_error_becomes_a_verify_error():
    with make_context(), pytest.raises(VerifyError) as caught, mlir_errors():
        ir.Module.parse('func.func @f(%a: f32) {\n  "attn.yield"(%a) : (f32) -> ()\n}')
    error = caught.value
    assert str(error) == (
        "'attn.yield' op expects to be inside an attn operation, is inside 'func.func'"
    )
    assert error.op == "attn.yield"
    assert error.location == "-:2:3"
    assert error.notes == ()
    assert isinstance(error.__cause__, ir.MLIRError)


def test_notes_are_kept():
    text = "func.func @f() { func.return }\nfunc.func @f() { func.return }"
    with make_context(), pytest.raises(VerifyError, match="redefinition") as caught, mlir_errors():
        ir.Module.parse(text)
    (note,) = caught.value.notes
    assert note == "-:1:1: note: see existing symbol definition here"
    (diagnostic,) = diagnostics_of(caught.value)
    assert diagnostic.notes == (Diagnostic("note", "-:1:1", "see existing symbol definition here"),)
    assert diagnostic.render("x.mlir").split("\n") == [
        "x.mlir:2:1: error: redefinition of symbol named 'f'",
        "x.mlir:1:1: note: see existing symbol definition here",
    ]


def test_other_errors_pass_unchanged():
    with make_context(), pytest.raises(ZeroDivisionError), mlir_errors():
        1 / 0  # noqa: B018


def test_op_error_names_the_operation_and_its_place():
    with make_context():
        module = ir.Module.parse("\n  func.func @f() { func.return }")
        error = op_error(module.body.operations[0], "expects nothing, got f", notes=("so",))
    assert str(error) == "'func.func' op expects nothing, got f"
    assert (error.op, error.location, error.notes) == ("func.func", "-:2:3", ("so",))
    assert diagnostics_of(error)[0].notes == (Diagnostic("note", "-:2:3", "so"),)


def test_an_error_without_a_place_is_still_a_diagnostic():
    (diagnostic,) = diagnostics_of(SpecError("head_dim 72 has no kernel"))
    assert diagnostic.render() == "unknown location: error: head_dim 72 has no kernel"
    assert diagnostic.render("a.mlir") == "a.mlir: error: head_dim 72 has no kernel"


def test_locations_are_looked_through():
    with make_context():
        file = ir.Location.file("a.mlir", 3, 4)
        other = ir.Location.file("b.mlir", 5, 6)
        assert location_text(file) == "a.mlir:3:4"
        assert location_text(ir.Location.name("x", file)) == "a.mlir:3:4"
        assert location_text(ir.Location.fused([ir.Location.unknown(), other])) == "b.mlir:5:6"
        assert location_text(ir.Location.callsite(file, [other])) == "a.mlir:3:4"
        assert location_text(ir.Location.unknown()) is None


EXPECTED = """\
// expected-error @below {{first}}
// expected-note @below {{second}}
op
op // expected-warning {{third {x}}}
// expected-error-re @+2 {{four{{[a-z]+}}}}

op
op
// expected-remark @above {{fifth}}
// expected-error @unknown {{sixth}}
// expected-error @-1 {{seventh}}
"""


def test_expectations_are_read():
    found = [(item.severity, item.line, item.text) for item in expectations(EXPECTED)]
    assert found == [
        ("error", 3, "first"),
        ("note", 3, "second"),
        ("warning", 4, "third {x}"),
        ("error", 7, "four{{[a-z]+}}"),
        ("remark", 8, "fifth"),
        ("error", None, "sixth"),
        ("error", 10, "seventh"),
    ]


def test_what_came_and_what_was_expected_must_be_the_same():
    text = "// expected-error @below {{first}}\nop\n"
    good = Diagnostic("error", "-:2:1", "the first one")
    assert check(text, [good]) == []
    assert [item.message for item in check(text, [])] == ['expected error "first" was not produced']
    note = Diagnostic("note", "-:2:1", "a note")
    twice = Diagnostic("error", "-:2:1", "the first one", (note,))
    assert [item.message for item in check(text, [twice])] == ["unexpected note: a note"]
    assert len(check(text, [good, good])) == 1
    wrong = [
        Diagnostic("warning", "-:2:1", "the first one"),
        Diagnostic("error", "-:1:1", "the first one"),
        Diagnostic("error", None, "the first one"),
        Diagnostic("error", "-:2:1", "another"),
    ]
    for diagnostic in wrong:
        assert len(check(text, [diagnostic])) == 2


@pytest.mark.parametrize(
    ("text", "message", "other"),
    [
        ("got {{[0-9]+$}}", "expects 3, got 17", "expects 3, got x"),
        ("{{^a|b}} (c) {{[0-9]{2}}}", "b (c) 17", "b c 17"),
        ("a.c", "a.c", "abc"),
        ("{{a|b}}{{[x}]}}!", "b}!", "ab!"),
    ],
)
def test_regular_expressions_stand_in_braces_within_the_text(text: str, message: str, other: str):
    chunk = f"op // expected-error-re {{{{{text}}}}}\n"
    assert check(chunk, [Diagnostic("error", "-:1:1", message)]) == []
    assert len(check(chunk, [Diagnostic("error", "-:1:1", other)])) == 2


def test_what_nobody_expects_may_be_ignored():
    text = "// expected-error @below {{first}}\nop\n"
    found = [Diagnostic("error", "-:2:1", "first"), Diagnostic("error", "-:2:1", "second")]
    assert check(text, found, only_expected=True) == []
    assert len(check(text, found[1:], only_expected=True)) == 1


def test_chunks_keep_their_line_numbers():
    chunks = split_chunks("a\nb\n// -----\nc\n// -----  \n", "f")
    assert [chunk.text for chunk in chunks] == ["a\nb\n", "\n\n\nc\n", "\n\n\n\n\n"]


def test_a_stage_permits_by_dialect_or_by_name():
    stage = Stage("x", ("builtin.module", "arith."), ("arith.divf",))
    assert stage.permits("arith.addf")
    assert not stage.permits("arith.divf")
    assert not stage.permits("builtin.unrealized_conversion_cast")
    assert not stage.permits("arithmetic.addf")
    assert set(STAGES) == {"attn", "ws", "nvvm", "llvm", "binary"}


def test_at_most_ten_illegal_operations_are_named():
    lines = "\n".join(f"  %{i} = math.exp %a : f32" for i in range(20))
    text = f"func.func @f(%a: f32) {{\n{lines}\n  func.return\n}}"
    with make_context():
        module = ir.Module.parse(text)
        check_stage(module, ATTN)
        with pytest.raises(
            VerifyError, match=r"'math\.exp' op is not legal at stage 'x'"
        ) as caught:
            check_stage(module, Stage("x", ("builtin.", "func.")))
    assert caught.value.location == "-:2:8"
    assert len(caught.value.notes) == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "#attn.sliding_window<1, 0>",
            "attribute #attn.sliding_window: am.sliding_window of Python is #attn.window in text",
        ),
        (
            "#attn.and<#attn.causal, #attn.full>",
            "attribute #attn.full: am.full of Python is #attn.null in text",
        ),
        (
            "#attn.windw<1, 0>",
            "attribute #attn.windw: attn has #attn.null, #attn.causal, #attn.window",
        ),
        ("#ws.causal", "attribute #ws.causal: ws has none"),
        ("!ws.fragment", "type !ws.fragment: ws has !ws.tile, !ws.frag"),
    ],
)
def test_names_that_a_dialect_does_not_have(text: str, message: str):
    """The parser says only where an unknown attribute is; here its name and those there are are told."""
    module = f"\n\nmodule attributes {{b = #attn.causal, a = {text}}} {{}}"
    with pytest.raises(VerifyError, match=re.escape(f"unknown {message}")) as caught:
        parse_module(module, make_context())
    assert (caught.value.location or "").startswith("-:3:")
