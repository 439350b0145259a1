"""The compiler's interface to a request: its operands by name, and its operation. Without MLIR.

A kernel's call is described once, by the `operands` of a request: the arguments of the function,
the tensors and scalars of the bundle, and the shapes of results all follow from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Role = Literal["in", "out", "inout", "scalar"]


@dataclass(frozen=True)
class Operand:
    """One tensor or scalar of a kernel's call.

    Attributes:
      name: its name for callers, in the bundle and in the IR.
      dtype: type of its elements or of the scalar, of those `DECLARED` in the table of types.
      extents: extents of a tensor: an integer if static, or the name of a size that each call
        gives. Extents with the same name are equal.
      role: `in`, `out`, `inout` for a tensor that the kernel reads and writes, or `scalar`.
      default: default value of a scalar that calls may leave out.
    """

    name: str
    dtype: str
    extents: tuple[int | str, ...] = ()
    role: Role = "in"
    default: float | None = None


class Request(Protocol):
    """A request for a kernel; the front end has a class for each operation."""

    @property
    def kernel_name(self) -> str:
        """Entry point of the kernel."""
        ...

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Tensors and scalars, in the order of the kernel's call."""
        ...

    @property
    def schedule_options(self) -> Mapping[str, int | str]:
        """Options for `attn-configure`."""
        ...

    def canonical_json(self) -> str:
        """Text that is the same for equal requests; it is stored in the bundle."""
        ...

    def emit(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Builds the operation at MLIR's insertion point.

        Args:
          arguments: a value for each operand that is not an output, by name.

        Returns:
          A value for each output, by name; others are ignored.
        """
        ...
