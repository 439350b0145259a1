"""The base class of requests: the options and operands of a kernel, declared once.

A subclass declares its options as fields and its operands as a property. This module derives the
rest: checked and completed options, the canonical form and its inverse. `operations` lists the
subclasses.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.errors import SpecError
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.knobs import Knobs
from attn_mlir.schedules.policy.registry import named

T = TypeVar("T")
A = TypeVar("A")

_WRITTEN, _READ, _CHECK, _KNOB = "written", "read", "check", "knob"  # keys of a field's metadata


def option(
    *,
    converter: Callable[[A], Any],
    default: Any = dataclasses.MISSING,
    written: Callable[[Any], object] = lambda value: value,
    read: Callable[[Any], object] = lambda value: value,
    knob: str | None = None,
) -> Any:
    """A field of a request.

    Args:
      converter: checks a value and returns its canonical form; raises SpecError.
      default: default of an option. None is not passed to the converter, and is replaced by the
        value in `Request.completed`, if any.
      written: converts a value to JSON.
      read: converts that JSON to an argument of the converter.
      knob: the knob of policies that it pins, by name; None or False leaves the knob to the policy.
    """
    metadata = {_CHECK: converter, _WRITTEN: written, _READ: read, _KNOB: knob}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
def request(cls: type[T]) -> type[T]:
    """Class decorator: makes a class of options a request, frozen and with keywords only."""
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


class Request(ABC):
    """Base class of requests; implements `attn_mlir.dialect.attn.operands.Request`."""

    operation: ClassVar[str]

    @property
    @abstractmethod
    def kernel_name(self) -> str:
        """Name of the entry point, made of the static options, readable in a profiler."""

    @property
    @abstractmethod
    def operands(self) -> tuple[Operand, ...]:
        """The tensors and scalars of the kernel, in the order of the call."""

    @abstractmethod
    def problem(self) -> Facts:
        """The facts that policies choose by; the operation that `emit` builds has the same."""

    @functools.cached_property
    def facts(self) -> Facts:
        """`problem`, computed once."""
        return self.problem()

    @functools.cached_property
    def pins(self) -> Knobs:
        """The knobs that options pin, by their names in policies."""
        values = ((knob, getattr(self, name)) for knob, name in _knobs(type(self)))
        return {knob: value for knob, value in values if value not in (None, False)}

    @property
    def schedule_options(self) -> Mapping[str, int | str]:
        """The same as options for `attn-configure`."""
        pairs = ((knob.replace("_", "-"), value) for knob, value in self.pins.items())
        return {name: "true" if value is True else value for name, value in pairs}

    @functools.cached_property
    def policy(self) -> Policy | None:
        """The policy of the schedule that it names; None where it names none."""
        name: str | None = getattr(self, "schedule", None)
        return None if name is None else named(self.operation, name)

    @property
    def schedule_word(self) -> str:
        """The word of that schedule in the name of the kernel."""
        return "" if self.policy is None else self.policy.suffix

    @abstractmethod
    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Builds the operation in MLIR; see `attn_mlir.dialect.attn.operands.Request`."""

    def completed(self) -> Mapping[str, object]:
        """Values for options that are None, as they follow from others."""
        return {}

    def check_together(self) -> None:  # noqa: B027
        """Refuses combinations of options that are valid one by one.

        Raises:
          SpecError: names them.
        """

    def __post_init__(self) -> None:
        """Checks every option, and completes those that are None."""
        for field in _options(type(self)):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                self._set(field.name, field.metadata[_CHECK](value))
        for name, value in self.completed().items():
            if getattr(self, name) is None:
                self._set(name, value)
        self.check_together()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def derived(self, **options: object) -> Self:
        """The same with other options: canonical ones that are known to go with the rest.

        A policy's choice is, so that the request for its kernel is not checked once more.
        """
        if all(getattr(self, name) == value for name, value in options.items()):
            return self
        made = object.__new__(type(self))
        kept = {field.name: getattr(self, field.name) for field in _options(type(self))}
        vars(made).update(kept | options)
        return made

    def operand(self, name: str) -> Operand | None:
        """The operand of that name; None if the kernel has none."""
        return next((operand for operand in self.operands if operand.name == name), None)

    @functools.cached_property
    def tensors(self) -> tuple[Operand, ...]:
        """The operands that are tensors, in the order of the call."""
        return tuple(operand for operand in self.operands if operand.role != "scalar")

    def fields(self) -> dict[str, object]:
        """The canonical form as JSON values; it is stored in the bundle's manifest."""
        result: dict[str, object] = {"op": self.operation}
        for field in _options(type(self)):
            value = getattr(self, field.name)
            result[field.name] = None if value is None else field.metadata[_WRITTEN](value)
        return result

    def canonical_json(self) -> str:
        """The canonical form as text, the same for equal requests."""
        return json.dumps(self.fields(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `fields`.

        Raises:
          SpecError: it is no canonical form; values of wrong types may raise any error.
        """
        options: dict[str, Any] = {}
        for field in _options(cls):
            value = fields[field.name]
            options[field.name] = None if value is None else field.metadata[_READ](value)
        made = cls(**options)
        if json.loads(made.canonical_json()) != dict(fields):
            raise SpecError("it is not in canonical form")
        return made


@functools.cache
def _options(cls: type) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a request that are options."""
    return tuple(field for field in dataclasses.fields(cls) if _CHECK in field.metadata)


@functools.cache
def _knobs(cls: type) -> tuple[tuple[str, str], ...]:
    """The knobs that options of a request pin, each with the name of its option."""
    return tuple((x.metadata[_KNOB], x.name) for x in _options(cls) if x.metadata[_KNOB])


def option_names(cls: type[Request]) -> tuple[str, ...]:
    """The names of a request's options, in the order of their declaration."""
    return tuple(field.name for field in _options(cls))
