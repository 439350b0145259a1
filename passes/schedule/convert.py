"""`convert-attn-to-ws`: replaces functions of one operation by the kernels of its schedule."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect._mlir import func, ir
from attn_mlir.passes.check_names import check_names
from attn_mlir.passes.infrastructure.diagnostics import op_error
from attn_mlir.passes.infrastructure.registry import register
from attn_mlir.passes.schedule.registry import operations, schedule_for
from attn_mlir.passes.target.module import target_of


@register
@dataclass(frozen=True)
class ConvertAttnToWs:
    """Replaces each function of one operation and nothing else by a `ws.kernel` of its schedule.

    Storage operations belong to it. Arguments of the function beyond the operation's operands are
    for those and for its score modifier. What has a configuration must have been configured; the
    kernel takes the function's name.

    Attributes:
      target: the chip; the module's, or sm_100a, where none is named.
    """

    name: ClassVar[str] = "convert-attn-to-ws"
    target: str = ""

    def run(self, module: Any) -> None:
        """Converts; no `attn` operation is left.

        Raises:
          TargetError: no schedule of an operation applies to the target.
          VerifyError: a function that computes something else as well, names that are wrong or
            there twice, or an operation that the schedule does not cover.
        """
        functions = list(ir.get_ops_of_type(module, func.FuncOp))
        target = target_of(module, self.target, keep=bool(functions))
        for function in functions:
            with function.operation.location, ir.InsertionPoint(function.operation):
                check_names(function)
                op = _only_operation(function)
                schedule_for(op, target).build(function, op, target)
            function.operation.erase()


def _only_operation(function: Any) -> Any:
    """The one operation of a function that has schedules."""
    block = list(function.body.blocks[0].operations)
    found = [op for op in block if isinstance(op, operations())]
    if len(found) != 1:
        known = " or ".join(sorted(kind.OPERATION_NAME for kind in operations()))
        names = ", ".join(op.operation.name for op in block)
        raise op_error(function, f"expects one {known} and func.return, got {names}")
    return found[0]
