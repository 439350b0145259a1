"""A request: what somebody asks a kernel for, described once.

A subclass declares its options as fields and its operands as a property. What follows from these
two is here: checked and completed options, the canonical form and its inverse. `operations` lists
the subclasses.
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from attn_mlir.dialect.attn.operands import Operand
from attn_mlir.errors import SpecError

T = TypeVar("T")
A = TypeVar("A")

_WRITTEN, _READ, _CHECK = "written", "read", "check"  # keys of a field's metadata


def option(
    *,
    converter: Callable[[A], Any],
    default: Any = dataclasses.MISSING,
    written: Callable[[Any], object] = lambda value: value,
    read: Callable[[Any], object] = lambda value: value,
) -> Any:
    """A field of a request.

    Args:
      converter: checks a value and brings it into its one form; raises SpecError.
      default: of an option that may be left out; None is passed to no converter, and stands for
        what `Request.completed` says.
      written: makes JSON of a value; `read` makes what the converter takes of that.
    """
    return dataclasses.field(
        default=default, metadata={_CHECK: converter, _WRITTEN: written, _READ: read}
    )


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
def request(cls: type[T]) -> type[T]:
    """Makes a class of options a request: frozen, with keywords only."""
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


class Request(ABC):
    """Base of the requests; see `attn_mlir.dialect.attn.operands.Request` for what compilers read."""

    operation: ClassVar[str]

    @property
    @abstractmethod
    def kernel_name(self) -> str:
        """Entry point: what is static, readable in a profiler."""

    @property
    @abstractmethod
    def operands(self) -> tuple[Operand, ...]:
        """What the kernel is called with, in the order of the call."""

    @property
    def schedule_options(self) -> Mapping[str, int | str]:
        """Options of `attn-configure` that are asked for."""
        return {}

    @abstractmethod
    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Builds the operation in MLIR; see `attn_mlir.dialect.attn.operands.Request`."""

    def completed(self) -> Mapping[str, object]:
        """Values of options that are None and follow from the others."""
        return {}

    def check_together(self) -> None:  # noqa: B027
        """Refuses options that do not go together, each of which is right by itself.

        Raises:
          SpecError: names them.
        """

    def __post_init__(self) -> None:
        """Checks every option, and completes those that follow from others."""
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

    def operand(self, name: str) -> Operand | None:
        """The operand of that name, if this kernel has it."""
        return next((operand for operand in self.operands if operand.name == name), None)

    @property
    def tensors(self) -> tuple[Operand, ...]:
        """The operands that are no numbers, in the order of the call."""
        return tuple(operand for operand in self.operands if operand.role != "scalar")

    def fields(self) -> dict[str, object]:
        """The canonical form as JSON has it; the manifest of its bundle keeps it."""
        found: dict[str, object] = {"op": self.operation}
        for field in _options(type(self)):
            value = getattr(self, field.name)
            found[field.name] = None if value is None else field.metadata[_WRITTEN](value)
        return found

    def canonical_json(self) -> str:
        """The same text for the same request, whoever wrote it."""
        return json.dumps(self.fields(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """The request that `fields` wrote.

        Raises:
          SpecError: it is none in canonical form; values of other types may raise anything.
        """
        options: dict[str, Any] = {}
        for field in _options(cls):
            value = fields[field.name]
            options[field.name] = None if value is None else field.metadata[_READ](value)
        made = cls(**options)
        if json.loads(made.canonical_json()) != dict(fields):
            raise SpecError("it is not in canonical form")
        return made


def _options(cls: type) -> list[dataclasses.Field[Any]]:
    """The fields of a request that are options."""
    return [field for field in dataclasses.fields(cls) if _CHECK in field.metadata]


def option_names(cls: type[Request]) -> tuple[str, ...]:
    """What the options of a request are called, in the order of their declaration."""
    return tuple(field.name for field in _options(cls))
