"""`ws-record-source`: makes the text of the planned kernels the source of PTX line numbers.

Debuggers, profilers and the emulator then show the `ws` operation of a PTX line. The module keeps
the text as an attribute, and a bundle carries it as `kernel.mlir`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect._mlir import ir
from attn_mlir.passes.infrastructure.registry import register

SOURCE = "attn.source"  # module attribute: the text that locations refer to
SOURCE_NAME = "kernel.mlir"


@register
@dataclass(frozen=True)
class RecordSource:
    """Prints the module, and sets the location of every operation to its line in that text."""

    name: ClassVar[str] = "ws-record-source"

    def run(self, module: Any) -> None:
        """Changes locations and one attribute only."""
        text = module.operation.get_asm(assume_verified=True)  # parsing also verifies the module
        printed = ir.Operation.parse(text, source_name=SOURCE_NAME)
        twins = _operations(printed)
        for op, twin in zip(_operations(module), twins, strict=True):
            op.location = twin.location
        module.operation.attributes[SOURCE] = ir.StringAttr.get(text)


def recorded_source(module: Any) -> str:
    """The text that `ws-record-source` stored; "" without one."""
    attributes = module.operation.attributes
    return ir.StringAttr(attributes[SOURCE]).value if SOURCE in attributes else ""


def _operations(module: Any) -> list[Any]:
    """A module's operations in the order of the text."""
    operations: list[Any] = []

    def visit(op: Any) -> Any:
        operations.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return operations
