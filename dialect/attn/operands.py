"""What the compiler reads of a request: its operands by name, and what builds its operation. Without MLIR.

A kernel's call is described once, as the `operands` of a request: the function's arguments, the
bundle's tensors and numbers, and the shapes of results all follow from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Role = Literal["in", "out", "inout", "scalar"]
ELEMENT_TYPES = {
    "bf16": "bf16",
    "f16": "f16",
    "f32": "f32",
    "f64": "f64",
    "e4m3": "f8E4M3FN",
    "e5m2": "f8E5M2",
    "bool": "i8",  # a byte; the sign tells i8 from it
    "i8": "si8",
    "i16": "i16",
    "i32": "i32",
    "i64": "i64",
    "u8": "ui8",
    "u16": "ui16",
}  # dtype of an operand -> element type in MLIR


@dataclass(frozen=True)
class Operand:
    """One tensor or number that a kernel is called with.

    Attributes:
      name: what callers, the bundle and the IR call it.
      dtype: of its elements, or of the number: a key of `ELEMENT_TYPES`.
      extents: of a tensor; an integer is part of the kernel, a name stands for what each call
        tells. Extents of one name are equal.
      role: `in`, `out`, `inout` for a tensor that the kernel writes into or works in, or `scalar`.
      default: of a number that calls may leave out.
    """

    name: str
    dtype: str
    extents: tuple[int | str, ...] = ()
    role: Role = "in"
    default: float | None = None


class Request(Protocol):
    """A kernel that somebody asks for; the front end has a class per operation."""

    @property
    def kernel_name(self) -> str:
        """Entry point of the kernel."""
        ...

    @property
    def operands(self) -> tuple[Operand, ...]:
        """In the order of the kernel's call."""
        ...

    @property
    def schedule_options(self) -> Mapping[str, int | str]:
        """Options of `attn-configure` that are asked for."""
        ...

    def canonical_json(self) -> str:
        """The same text for the same request; the bundle keeps it."""
        ...

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Builds the operation at MLIR's insertion point.

        Args:
          arguments: a value for each operand that is no output, by name.

        Returns:
          A value for each output, by name; further ones are not used.
        """
        ...
