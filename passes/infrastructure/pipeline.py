"""Parses pipelines and runs them over a module.

`builtin.module(attn-configure{tile-n=64},attn-to-ws,gpu.module(convert-scf-to-cf),cse)` mixes our
passes and upstream's. Ours run as Python calls on the `builtin.module`; runs of upstream's go to
a PassManager as text. All names are resolved before anything runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attn_mlir.dialect._mlir import ir, passmanager
from attn_mlir.dialect.diagnostics import mlir_errors
from attn_mlir.errors import SpecError
from attn_mlir.passes.infrastructure import analyses, registry

ANCHOR = "builtin.module"


@dataclass(frozen=True)
class Element:
    """One element of pipeline text.

    Attributes:
      name: a pass, a pipeline, or for a nest the operation it is anchored on.
      options: text between the braces, or None.
      nested: elements between the parentheses, or None where there are none.
    """

    name: str
    options: str | None
    nested: tuple["Element", ...] | None

    def __str__(self) -> str:
        options = "" if self.options is None else f"{{{self.options}}}"
        nested = "" if self.nested is None else f"({','.join(map(str, self.nested))})"
        return f"{self.name}{options}{nested}"


@dataclass(frozen=True)
class Step:
    """One thing to run: a pass of ours, or one or more upstream elements as text.

    Attributes:
      name: its name in reports.
      run: rewrites an ir.Module.
      text: its pipeline text, with all options.
      passes: names of the passes in it.
      changes: whether it may rewrite the module; if so, cached analyses are dropped after it.
    """

    name: str
    run: Callable[[Any], None]
    text: str
    passes: tuple[str, ...]
    changes: bool = True


class Observer(Protocol):
    """Callbacks of a running pipeline."""

    def before(self, step: Step, module: Any) -> None:
        """A step is about to run."""
        ...

    def after(self, step: Step, module: Any) -> None:
        """A step has run, and the module was verified if it had to be."""
        ...

    def failed(self, step: Step, module: Any) -> None:
        """A step has failed; `module` may be half rewritten."""
        ...


class _Parser:
    """Recursive descent over pipeline text."""

    def __init__(self, text: str):
        self.text = text
        self.at = 0

    def fail(self, message: str) -> SpecError:
        """Returns the error at the current position."""
        return SpecError(f"pipeline:1:{self.at + 1}: {message}, in: {self.text}")

    def peek(self) -> str:
        """Returns the next character that is not a blank, `""` at the end."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at] if self.at < len(self.text) else ""

    def elements(self, end: str) -> tuple[Element, ...]:
        """Parses elements up to `end` (`)` or `""`), which is consumed."""
        parsed: list[Element] = []
        while self.peek() != end:
            if parsed:
                if self.peek() != ",":
                    raise self.fail(f"expected ',' or '{end or 'the end'}'")
                self.at += 1
            parsed.append(self.element())
        self.at += 1
        return tuple(parsed)

    def element(self) -> Element:
        """Parses `name`, `name{options}` or `name(elements)`."""
        self.peek()
        start = self.at
        while self.at < len(self.text) and (
            self.text[self.at].isalnum() or self.text[self.at] in "-_."
        ):
            self.at += 1
        name = self.text[start : self.at]
        if not name:
            raise self.fail("expected the name of a pass")
        options = self.options() if self.peek() == "{" else None
        nested = None
        if self.peek() == "(":
            self.at += 1
            nested = self.elements(")")
        return Element(name, options, nested)

    def options(self) -> str:
        """Parses `{...}` with balanced braces, and returns the text between them."""
        start, depth = self.at + 1, 0
        while self.at < len(self.text):
            depth += {"{": 1, "}": -1}.get(self.text[self.at], 0)
            self.at += 1
            if depth == 0:
                return self.text[start : self.at - 1]
        raise self.fail("expected '}'")


def parse_elements(text: str) -> tuple[Element, ...]:
    """Parses pipeline text; the anchor `builtin.module(...)` may be absent.

    Raises:
      SpecError: text that is no pipeline, with the column.
    """
    elements = _Parser(text).elements("")
    if len(elements) == 1 and elements[0].name == ANCHOR and elements[0].nested is not None:
        return elements[0].nested
    return elements


def parse_options(text: str) -> dict[str, str]:
    """Splits `a=1 b flag c={x y}` at the blanks outside braces; a flag gets the value `""`.

    Raises:
      SpecError: an option twice, or a value without a name, as in `a = 1`.
    """
    options: dict[str, str] = {}
    depth, word = 0, ""
    for char in text + " ":
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char.isspace() and depth == 0:
            if word:
                name, _, value = word.partition("=")
                if not name or name in options:
                    what = f"option '{name}' twice" if name else f"'{word}' without a name"
                    raise SpecError(f"options hold {what}: write key=value key=value, got {text}")
                options[name] = value.removeprefix("{").removesuffix("}")
            word = ""
        else:
            word += char
    return options


def _expand(elements: Sequence[Element], chain: tuple[str, ...] = ()) -> list[Element | Any]:
    """Replaces our passes by their objects and our pipelines by their passes."""
    expanded: list[Element | Any] = []
    for element in elements:
        entry = registry.find(element.name)
        if entry is None:
            _refuse_ours_within(element)
            expanded.append(element)
            continue
        if element.nested is not None:
            raise SpecError(f"'{element.name}' is a pass and takes no '(...)'")
        instance = registry.make(entry, parse_options(element.options or ""))
        if isinstance(instance, registry.Pass):
            expanded.append(instance)
        else:
            if element.name in chain:
                raise SpecError(f"pipelines hold each other: {' > '.join((*chain, element.name))}")
            inner = parse_elements(instance.expand())
            expanded.extend(_expand(inner, (*chain, element.name)))
    return expanded


def _refuse_ours_within(element: Element) -> None:
    """Raises SpecError if a nest holds a pass of ours: they run on the whole module only."""
    for inner in element.nested or ():
        if registry.find(inner.name) is not None:
            raise SpecError(
                f"'{inner.name}' runs on {ANCHOR}, not on {element.name}: "
                f"move it out of '{element.name}(...)'"
            )
        _refuse_ours_within(inner)


def _names(element: Element) -> list[str]:
    """Names of the passes in an element, without the anchors of nests."""
    if element.nested is None:
        return [element.name]
    return [name for inner in element.nested for name in _names(inner)]


def _upstream_step(elements: Sequence[Element], *, verify: bool) -> Step:
    """Makes one PassManager of consecutive upstream elements.

    Raises:
      SpecError: a pass that does not exist, or an option that it does not have.
    """
    text = ",".join(map(str, elements))
    try:
        manager = passmanager.PassManager.parse(f"{ANCHOR}({text})")
    except ValueError as error:
        if len(elements) > 1:  # one by one, to find the one that is wrong
            for element in elements:
                _upstream_step([element], verify=verify)
        for name in _names(elements[0]):
            if f"'{name}' does not refer to a registered pass" in str(error):
                raise registry.unknown_pass(name) from error
        raise SpecError(f"upstream refuses '{text}': {' '.join(str(error).split())}") from error
    manager.enable_verifier(verify)

    def run(module: Any) -> None:
        with mlir_errors():
            manager.run(module.operation)

    spelled = str(manager).removeprefix(f"{ANCHOR}(").removesuffix(")")
    passes = tuple(name for element in elements for name in _names(element))
    return Step(text, run, " ".join(spelled.split()), passes)


def _our_step(instance: Any, *, verify: bool) -> Step:
    """Wraps a pass of ours, so that the module is verified after it, unless it is an analysis."""
    changes = not getattr(instance, "is_analysis", False)

    def run(module: Any) -> None:
        with mlir_errors():
            instance.run(module)
            if verify and changes:
                module.operation.verify()

    return Step(instance.name, run, registry.spelled(instance), (instance.name,), changes)


def build(text: str, *, verify_each: bool = True, fuse: bool = True) -> list[Step]:
    """Turns pipeline text into steps, everything looked up. Needs a current context.

    Args:
      text: the pipeline.
      verify_each: verify the module after each pass.
      fuse: run adjacent upstream passes in one PassManager; otherwise each is a step, as dumps and
        timings by pass need.

    Raises:
      SpecError: an unknown pass (with near misses) or option, or text that is no pipeline.
    """
    steps: list[Step] = []
    waiting: list[Element] = []

    def flush() -> None:
        if waiting:
            steps.append(_upstream_step(waiting, verify=verify_each))
            waiting.clear()

    for item in _expand(parse_elements(text)):
        if isinstance(item, Element):
            waiting.append(item)
            if not fuse:
                flush()
        else:
            flush()
            steps.append(_our_step(item, verify=verify_each))
    flush()
    return steps


def verify(module: Any) -> None:
    """Verifies a module; raises VerifyError with what MLIR says."""
    with module.context, mlir_errors():
        module.operation.verify()


def run_steps(module: Any, steps: Sequence[Step], observers: Sequence[Observer] = ()) -> None:
    """Runs steps over a module, in place, as `run_pipeline`. Needs a current context."""
    with analyses.cached():
        for step in steps:
            _run_step(module, step, observers)


def _run_step(module: Any, step: Step, observers: Sequence[Observer]) -> None:
    for observer in observers:
        observer.before(step, module)
    try:
        step.run(module)
    except Exception:
        for observer in observers:
            observer.failed(step, module)
        raise
    finally:
        if step.changes:
            analyses.forget()
    for observer in observers:
        observer.after(step, module)


def run_pipeline(
    module: Any,
    text: str,
    *,
    verify_each: bool = True,
    fuse: bool = True,
    observers: Sequence[Observer] = (),
) -> None:
    """Runs a pipeline over a module, in place.

    Args:
      module: an ir.Module of a context from `make_context`.
      text: the pipeline, with or without `builtin.module(...)`.
      verify_each, fuse: as `build`.
      observers: called for each step, in this order.

    Raises:
      AttnError: SpecError before anything ran; VerifyError, ResourceError or TargetError of a
        pass, after which the module must not be used.
    """
    with module.context, ir.Location.unknown():
        run_steps(module, build(text, verify_each=verify_each, fuse=fuse), observers)
