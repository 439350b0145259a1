"""`convert-attn-to-ws`: replaces a function of one `attn` operation by its schedule's kernel."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect._mlir import func, ir
from attn_mlir.dialect.attn.names import check_names
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.module import target_of
from attn_mlir.passes.check_scalars import check_regions
from attn_mlir.passes.infrastructure.registry import register
from attn_mlir.passes.meaning import record_meaning
from attn_mlir.schedules.choice import schedule_for
from attn_mlir.schedules.core.facts import operations


@register
@dataclass(frozen=True)
class ConvertAttnToWs:
    """Replaces each function that computes one operation by the `ws.kernel` of its schedule.

    The function may also hold storage operations. They and the score modifier use the arguments
    after the operation's operands. The operation must carry `attn.config` if its schedule has a
    configuration. The kernel gets the function's name; the request of an `attn.mha` is stored as an
    attribute of the module.

    Attributes:
      target: the chip; the module's, or sm_100a, where none is named.
    """

    name: ClassVar[str] = "convert-attn-to-ws"
    target: str = ""

    def run(self, module: Any) -> None:
        """Converts; no `attn` operation is left.

        Raises:
          TargetError: no schedule of an operation applies to the target.
          VerifyError: a function with other operations, malformed or duplicate names, a region with
            an operation without a lowering, or an operation that the schedule does not support.
        """
        functions = list(ir.get_ops_of_type(module, func.FuncOp))
        target = target_of(module, self.target, keep=bool(functions))
        for function in functions:
            with function.operation.location, ir.InsertionPoint(function.operation):
                check_names(function)
                op = _only_operation(function)
                check_regions(op)
                record_meaning(module, function)
                schedule_for(op, target).build(function, op, target)
            function.operation.erase()


def _only_operation(function: Any) -> Any:
    """The one operation of a function that has schedules."""
    block = list(function.body.blocks[0].operations)
    attn_ops = [op for op in block if isinstance(op, operations())]
    if len(attn_ops) != 1:
        supported = " or ".join(sorted(kind.OPERATION_NAME for kind in operations()))
        names = ", ".join(op.operation.name for op in block)
        raise op_error(function, f"expects one {supported} and func.return, got {names}")
    return attn_ops[0]
