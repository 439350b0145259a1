"""Pipeline text, lookup before anything runs, and running over a module."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.errors import SpecError, VerifyError
from attn_mlir.passes.infrastructure import registry
from attn_mlir.passes.infrastructure.pipeline import (
    Step,
    build,
    parse_elements,
    parse_options,
    run_pipeline,
)

TEXT = "func.func @f(%a: f32) -> f32 {\n  %0 = arith.addf %a, %a : f32\n  func.return %a : f32\n}"


@dataclass(frozen=True)
class Mark:
    """Marks the module with its options."""

    name: ClassVar[str] = "attn-test-mark"
    num_stages: int = 2
    ratio: float = 0.5
    deep: bool = False
    label: str = "none"
    kind: Literal["a", "b"] = "a"
    sizes: tuple[int, ...] = ()

    def run(self, module: Any) -> None:
        module.operation.attributes["attn.mark"] = ir.StringAttr.get(repr(self))


@dataclass(frozen=True)
class Break:
    """Leaves a module that does not verify."""

    name: ClassVar[str] = "attn-test-break"

    def run(self, module: Any) -> None:
        function = module.body.operations[0]
        block = function.regions[0].blocks[0]
        list(block.operations)[-1].operation.erase()


@dataclass(frozen=True)
class Staged:
    """A pipeline with an option."""

    name: ClassVar[str] = "attn-test-staged"
    num_stages: int = 3

    def expand(self) -> str:
        return f"attn-test-mark{{num-stages={self.num_stages}}},cse"


@pytest.fixture(autouse=True)
def test_passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registers the passes above for one test."""
    registry.passes()  # plug-ins are in before the copy
    monkeypatch.setattr(registry, "_passes", dict(registry._passes))
    monkeypatch.setattr(registry, "_pipelines", dict(registry._pipelines))
    registry.register(Mark)
    registry.register(Break)
    registry.register_pipeline(Staged)
    registry.register_pipeline("attn-test-both", "attn-test-staged{num-stages=4},canonicalize")
    yield


@pytest.fixture
def module() -> ir.Module:
    """A function with an unused addition."""
    return ir.Module.parse(TEXT, make_context())


def names(text: str) -> list[str]:
    """Returns the names of the steps that text stands for."""
    with make_context():
        return [step.name for step in build(text)]


def test_text_is_parsed_with_nests_and_options():
    elements = parse_elements(" builtin.module( a{x=1 y={2 3}} ,gpu.module(b,c{d}) ) ")
    assert [str(element) for element in elements] == ["a{x=1 y={2 3}}", "gpu.module(b,c{d})"]
    assert parse_elements("") == ()


def test_options_are_split_outside_braces():
    assert parse_options("a=1  flag b={x=1 y=2} c=") == {
        "a": "1",
        "flag": "",
        "b": "x=1 y=2",
        "c": "",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("builtin.module(a", "pipeline:1:17: expected ',' or ')'"),
        ("a b", "pipeline:1:3: expected ',' or 'the end'"),
        ("a{b", "pipeline:1:4: expected '}'"),
        ("a,,b", "pipeline:1:3: expected the name of a pass"),
        ("a)", "pipeline:1:2: expected ',' or 'the end'"),
    ],
)
def test_text_that_is_no_pipeline(text: str, message: str):
    with pytest.raises(SpecError, match=re.escape(message)):
        parse_elements(text)


def test_neighbouring_upstream_passes_share_a_step():
    assert names("cse,canonicalize,attn-test-mark,gpu.module(cse),cse") == [
        "cse,canonicalize",
        "attn-test-mark",
        "gpu.module(cse),cse",
    ]
    with make_context():
        steps = build("cse,canonicalize", fuse=False)
    assert [step.name for step in steps] == ["cse", "canonicalize"]


def test_pipelines_expand_into_their_passes():
    assert names("attn-test-both,cse") == ["attn-test-mark", "cse,canonicalize,cse"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attn-test-mrk", "unknown pass or pipeline 'attn-test-mrk': did you mean attn-test-mark"),
        ("gpu.module(cze)", "unknown pass or pipeline 'cze': did you mean cse?"),
        ("qqqqqqqq", "unknown pass or pipeline 'qqqqqqqq': see attn-opt --list-passes"),
        ("cse{x=1}", "upstream refuses 'cse{x=1}': <Pass-Options-Parser>: no such option x"),
        ("attn-test-mark{x=1}", "'attn-test-mark' has no option 'x': allowed are num-stages,"),
        ("attn-test-mark{num-stages=x}", "'num-stages' of 'attn-test-mark' expects an integer"),
        ("attn-test-mark{ratio=x}", "option 'ratio' of 'attn-test-mark' expects a number, got 'x'"),
        ("attn-test-mark{deep=x}", "'deep' of 'attn-test-mark' expects true or false, got 'x'"),
        ("attn-test-mark{kind=c}", "'kind' of 'attn-test-mark' expects one of a, b, got 'c'"),
        ("attn-test-mark{num-stages}", "expects an integer, got '': write num-stages=VALUE"),
        ("attn-test-mark{num-stages = 3}", "options hold '=' without a name: write key=value"),
        ("attn-test-mark{deep deep=0}", "options hold option 'deep' twice: write key=value"),
        ("attn-test-mark(cse)", "'attn-test-mark' is a pass and takes no '(...)'"),
        ("attn-test-both{x=1}", "'attn-test-both' takes no options, got x"),
        ("func.func(attn-test-mark)", "runs on builtin.module, not on func.func: move it out"),
    ],
)
def test_everything_is_looked_up_before_anything_runs(module: ir.Module, text: str, message: str):
    before = str(module)
    with pytest.raises(SpecError, match=re.escape(message)):
        run_pipeline(module, f"attn-test-mark,canonicalize,{text}")
    assert str(module) == before


def test_options_reach_the_pass(module: ir.Module):
    options = "num-stages=7 ratio=2.5 deep label=x kind=b sizes={1,2}"
    run_pipeline(module, f"attn-test-mark{{{options}}}")
    expected = Mark(num_stages=7, ratio=2.5, deep=True, label="x", kind="b", sizes=(1, 2))
    assert ir.StringAttr(module.operation.attributes["attn.mark"]).value == repr(expected)


class Watch:
    """Notes who ran, and how it ended."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def before(self, step: Step, module: Any) -> None:
        self.seen.append(f"before {step.name}")

    def after(self, step: Step, module: Any) -> None:
        self.seen.append(f"after {step.name}")

    def failed(self, step: Step, module: Any) -> None:
        self.seen.append(f"failed {step.name}")


def test_the_pipeline_runs_in_order_and_is_watched(module: ir.Module):
    watch = Watch()
    run_pipeline(module, "attn-test-staged,canonicalize", observers=[watch])
    names = ["attn-test-mark", "cse,canonicalize"]
    assert watch.seen == [f"{when} {name}" for name in names for when in ("before", "after")]
    assert "addf" not in str(module)
    assert "num_stages=3" in str(module)


def test_what_a_pass_breaks_is_reported_after_it(module: ir.Module):
    watch = Watch()
    with pytest.raises(VerifyError, match=r"empty block|terminator") as caught:
        run_pipeline(module, "attn-test-break,cse", observers=[watch])
    assert watch.seen == ["before attn-test-break", "failed attn-test-break"]
    assert isinstance(caught.value.__cause__, ir.MLIRError)


@pytest.mark.parametrize(
    "options",
    ["", "num-stages=7 ratio=2.5 deep label=x kind=b sizes={1,2}", "label={x y} sizes={}"],
)
def test_a_step_is_spelled_so_that_it_can_be_built_again(options: str):
    with make_context():
        (step,) = build(f"attn-test-mark{{{options}}}")
        (again,) = build(step.text)
        assert step.text == again.text and step.passes == ("attn-test-mark",)
        (upstream,) = build("func.func(canonicalize),cse")
        assert upstream.passes == ("canonicalize", "cse")
        assert build(upstream.text)[0].text == upstream.text


def test_two_passes_cannot_share_a_name():
    @dataclass(frozen=True)
    class Other:
        name: ClassVar[str] = "attn-test-mark"

        def run(self, module: Any) -> None:
            raise NotImplementedError

    with pytest.raises(SpecError, match="pass or pipeline 'attn-test-mark' already"):
        registry.register(Other)
