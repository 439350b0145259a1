"""Whether each argument of a function does something: it is changed once, and what is launched must change.

Launches are recorded in the place of being carried out, so that nothing is compiled. Observed of a call are
its plans (requests, arguments by content, memory of the caller, device, stream), its results, and what it
left in the caller's arrays.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest

from attn_mlir.api.plan import Plan
from attn_mlir.block_masks.blocks import BlockMask
from attn_mlir.compiling.compiler import recording
from attn_mlir.compiling.request import Request
from attn_mlir.errors import AttnError
from attn_mlir.runtime.call.tensors import bytes_at, view

ARRAYS = ("numpy", "torch", "attn_mlir.runtime.call.tensors")  # modules of what is read by content


@dataclass(frozen=True)
class Change:
    """A value of an argument that must matter.

    Attributes:
      value: in the place of the one in `given`, or of that in a call that is right.
      given: further arguments of both calls, with which this one means something.
      every: whether each of the plans must change, not just one.
      refused: whether the value must be refused instead.
      nothing: whether the argument says nothing, so that the call must stay as it is.
    """

    value: Any
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])
    every: bool = False
    refused: bool = False
    nothing: bool = False


@dataclass(frozen=True)
class Subject:
    """A function with a change for each of its arguments.

    Attributes:
      function: takes arguments by name.
      right: makes the arguments of a call that is right.
      changes: by the name of the argument.
    """

    function: Callable[..., Any]
    right: Callable[[], Mapping[str, Any]]
    changes: Mapping[str, Change]


@dataclass(frozen=True)
class Observed:
    """What came of a call.

    Attributes:
      plans: that it carried out, each as text.
      rest: its results, and the caller's arrays that it wrote to.
    """

    plans: tuple[str, ...]
    rest: str


def refused(**values: Any) -> dict[str, Change]:
    """Values of options that are refused, because they would need an effect."""
    return {name: Change(value, refused=True) for name, value in values.items()}


def nothing(**values: Any) -> dict[str, Change]:
    """Values of options that are accepted and have no effect."""
    return {name: Change(value, nothing=True) for name, value in values.items()}


def unread(*names: str) -> dict[str, Change]:
    """Arguments that are never read: any object is accepted."""
    return nothing(**dict.fromkeys(names, Nothing()))


@contextlib.contextmanager
def only_planned() -> Generator[list[Plan]]:
    """Within it plans are noted in the place of being carried out; all results are 1. Nothing is compiled."""
    plans: list[Plan] = []

    def execute(plan: Plan) -> dict[str, Any]:
        plans.append(plan)
        made = {x.name: plan._memory(x) for x in plan.results}  # pyright: ignore[reportPrivateUsage]
        for memory in made.values():
            tensor: Any = memory.tensor
            tensor[...] = 1
        return {name: memory.finish() for name, memory in made.items()}

    with mock.patch.object(Plan, "execute", execute), recording(lambda _: None):
        yield plans


def observed(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Observed:
    """Calls a function, and says what came of it; errors are the function's."""
    before = {name: told(value) for name, value in arguments.items()}
    with only_planned() as plans:
        results = function(**arguments)
    after = {name: told(value) for name, value in arguments.items()}
    written = {name: text for name, text in after.items() if text != before[name]}
    return Observed(tuple(map(told, plans)), f"{told(results)} {written}")


def told(value: Any) -> str:
    """A value as text, of arrays their contents: values that differ in what they mean have other texts."""
    if isinstance(value, Plan):
        steps = [(x.request, dict(x.arguments)) for x in value.steps]
        given = [
            None if x.external is None else view(x.external.tensor, x.name).address
            for x in value.results
        ]
        memory = [(x.name, x.dtype, x.shape) for x in (*value.results, *value.workspace)]
        where = (value.device, value.stream, value.target, value.sm_margin)
        return told((steps, given, memory, *where))
    if isinstance(value, Request):
        return value.canonical_json()
    if isinstance(value, BlockMask):
        return told((value.kinds, value.block_size, value.mask, value.shape, value.offsets))
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value).items()
        return "{" + ", ".join(f"{name}: {told(x)}" for name, x in pairs) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(told(x) for x in cast("list[Any]", value)) + ")"
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not _is_array(value):
        fields = {x.name: getattr(value, x.name) for x in dataclasses.fields(value)}
        return f"{type(value).__name__}{told(fields)}"
    return _contents(value) if _is_array(value) else _plain(value)


def _plain(value: Any) -> str:
    """A number or a text; of other objects their class."""
    return repr(value) if isinstance(value, str | int | float | None) else type(value).__name__


def _is_array(value: object) -> bool:
    module = str(getattr(type(value), "__module__", ""))
    return module.startswith(ARRAYS) and hasattr(value, "shape") and hasattr(value, "dtype")


def _contents(array: Any) -> str:
    """Dtype, shape and elements of an array in host memory."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        array = array.detach()
    found = view(array, "array")
    low, length = found.byte_range
    strides = [stride * found.item_bytes for stride in found.strides]
    shape = (*found.shape, found.item_bytes)
    memory = bytes_at(low, length)
    elements = np.ndarray(shape, np.uint8, memory.data, found.address - low, (*strides, 1))
    digest = hashlib.sha256(elements.tobytes()).hexdigest()[:16]
    return f"{found.dtype}{list(found.shape)} {digest}"


def parameters(function: Callable[..., Any]) -> list[str]:
    """The names of a function's arguments, those of typed `**options` included."""
    names: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            names.append(name)
        else:
            (options,) = typing.get_args(typing.get_type_hints(function)[name])
            names += options.__annotations__
    return [name for name in names if name != "self"]


def by_name(places: Mapping[str, Mapping[str, Subject]]) -> dict[str, Subject]:
    """The subjects of several modules as `module.function`, which is a test's name."""
    return {
        f"{place}.{name}": subject
        for place, subjects in places.items()
        for name, subject in subjects.items()
    }


def arguments_of(subjects: Mapping[str, Subject]) -> dict[str, tuple[Subject, str]]:
    """Each changed argument of the subjects, as `module.function.argument`."""
    return {
        f"{name}.{argument}": (subject, argument)
        for name, subject in subjects.items()
        for argument in subject.changes
    }


def complaint(subject: Subject, argument: str) -> str:
    """Why the change of an argument is not what it should be; empty if it is.

    Raises:
      Exception: whatever the function raises where it should not.
    """
    change = subject.changes[argument]
    right = {**subject.right(), **change.given}
    before = observed(subject.function, copy.deepcopy(right))  # which may write to its arrays
    changed = copy.deepcopy({**right, argument: change.value})
    try:
        after = observed(subject.function, changed)
    except AttnError:
        if change.refused:
            return ""
        raise
    if change.refused:
        return "it is not refused"
    if change.nothing:
        return "" if before == after else "something changes"
    if before == after:
        return "nothing changes"
    if change.every:
        pairs = zip(before.plans, after.plans, strict=True)
        same = [number for number, (x, y) in enumerate(pairs) if x == y]
        return f"launch {same} stays as it was" if same else ""
    return ""


class Nothing:
    """An object that no argument may be."""

    def __repr__(self) -> str:
        return "<nothing>"


def unnamed(subject: Subject) -> dict[str, str]:
    """The arguments of a function that are not refused by their own name where they are `Nothing`.

    Those whose change stands for any object are left out.

    Returns:
      what happens instead, by argument.
    """
    found: dict[str, str] = {}
    for argument, change in subject.changes.items():
        if isinstance(change.value, Nothing):
            continue
        wrong = {**subject.right(), **change.given, argument: Nothing()}
        try:
            observed(subject.function, copy.deepcopy(wrong))
        except AttnError as error:
            if not re.search(rf"\b{argument.rpartition('.')[2]}\b", str(error)):
                found[argument] = str(error)
        else:
            found[argument] = "it is taken"
    return found


def effect_tests(
    subjects: Mapping[str, Mapping[str, Subject]],
    *,
    otherwise: Collection[str] = (),
    taken: Collection[str] = (),
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Two tests of a module: each argument does something, and is refused by its name if it is `Nothing`.

    Args:
      subjects: by module and function.
      otherwise: names of arguments that are refused by other names.
      taken: names of arguments that nothing looks at, `module.function.argument` or the last part alone.
    """
    functions = by_name(subjects)
    table = arguments_of(functions)

    @pytest.mark.parametrize(("subject", "argument"), table.values(), ids=table)
    def does_something(subject: Subject, argument: str) -> None:
        if found := complaint(subject, argument):
            pytest.fail(found)

    @pytest.mark.parametrize("name", functions)
    def is_refused_by_its_name(name: str) -> None:
        found = {
            argument: text
            for argument, text in unnamed(functions[name]).items()
            if argument not in taken and f"{name}.{argument}" not in taken
        }
        assert set(found) <= set(otherwise), found
        assert "it is taken" not in found.values(), found

    return does_something, is_refused_by_its_name
