"""Names of the values that decide over ring operations and are not computed by the kernel.

Run-time sizes, scalars of the call, and elements of its inputs. An element of an input is the same
value wherever it is read, since nobody writes inputs: `ends[tile2 + 1]` names it by its place.
"""

from collections.abc import Callable
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir

Value = Any


class Atoms:
    """The named values of one kernel."""

    def __init__(self, kernel: ws.KernelOp):
        self._arguments: list[Value] = list(kernel.body.blocks[0].arguments)
        self._names = kernel.names
        self._roles = kernel.io_roles
        self._dims = kernel.dims

    def scalar(self, value: Value) -> str | None:
        """The name of a scalar of the call."""
        if value not in self._arguments:
            return None
        return self._names[self._arguments.index(value)]

    def extent(self, op: ws.ExtentOp) -> str | int:
        """The name of a run-time size, or a static size itself."""
        name = self._dims[self._arguments.index(op.source)][op.dim.value]
        return name or ir.MemRefType(op.source.type).get_dim_size(op.dim.value)

    def element(self, op: ws.ElementOp, text_of: Callable[[Value], str]) -> str | None:
        """The name of an element of an input; None if it is something that the kernel writes.

        Args:
          text_of: canonical text of a coordinate.
        """
        if op.source not in self._arguments:
            return None
        number = self._arguments.index(op.source)
        if self._roles[number] != "in":
            return None
        return f"{self._names[number]}[{', '.join(text_of(coord) for coord in op.coords)}]"


def is_element(name: str) -> bool:
    """Whether a name is that of an input's element."""
    return name.endswith("]")


def known_at_launch(kernel: ws.KernelOp) -> set[str]:
    """Names of run-time sizes and of scalars."""
    sizes = {name for dims in kernel.dims for name in dims if name}
    roles = zip(kernel.names, kernel.io_roles, strict=True)
    return sizes | {name for name, role in roles if role == "scalar"}
