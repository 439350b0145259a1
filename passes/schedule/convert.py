"""`convert-attn-to-ws`: replaces functions of one attention operation by kernels."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect._mlir import func, ir
from attn_mlir.dialect.attn import STORAGE_OPERATIONS, CombineOp, MhaOp, ScaledOp
from attn_mlir.passes.check_names import OPERANDS, check_names, default_of, names_of
from attn_mlir.passes.infrastructure.diagnostics import op_error
from attn_mlir.passes.infrastructure.registry import register
from attn_mlir.passes.schedule.kernels.combine import schedule_combine
from attn_mlir.passes.schedule.kernels.mha import Capture, schedule_mha
from attn_mlir.passes.schedule.parts.sequences import root


@register
@dataclass(frozen=True)
class ConvertAttnToWs:
    """Replaces each function of one `attn.mha` or `attn.combine` and nothing else by a `ws.kernel`.

    Storage operations belong to it. Arguments of the function beyond the operation's operands are
    for those and for its score modifier.

    An `attn.mha` must have been configured; the kernel takes the function's name.
    """

    name: ClassVar[str] = "convert-attn-to-ws"

    def run(self, module: Any) -> None:
        """Converts; no `attn` operation is left.

        Raises:
          VerifyError: a function that computes something else as well, names that are wrong or
            there twice, or an operation that the schedule does not cover.
        """
        for function in list(ir.get_ops_of_type(module, func.FuncOp)):
            with function.operation.location, ir.InsertionPoint(function.operation):
                check_names(function)
                if _holds_combine(function):
                    _convert_combine(function)
                else:
                    _convert_attention(function)
            function.operation.erase()


def _convert_attention(function: Any) -> None:
    op = _only_attention(function)
    schedule_mha(
        op,
        function.sym_name.value,
        default_scale=default_of(function, OPERANDS.index("scale")),
        captures=_captures(function),
    )


def _holds_combine(function: Any) -> bool:
    return any(isinstance(op, CombineOp) for op in function.body.blocks[0].operations)


def _convert_combine(function: Any) -> None:
    operations = list(function.body.blocks[0].operations)
    op = operations[0]
    if len(operations) != 2 or not isinstance(op, CombineOp):
        names = ", ".join(op.operation.name for op in operations)
        raise op_error(function, f"expects one attn.combine and func.return, got {names}")
    if list(op.operation.operands) != list(function.arguments):
        raise op_error(op, "expects the function's arguments as its operands, in order")
    returned = list(operations[1].operation.operands)
    if returned not in ([op.o, op.lse], [op.o]):
        raise op_error(operations[1], "expects to return o, or o and lse, of the attn.combine")
    schedule_combine(op, function.sym_name.value, with_lse=len(returned) > 1)


def _only_attention(function: Any) -> MhaOp:
    """The one operation of a function whose arguments and results it takes over as they are."""
    block = list(function.body.blocks[0].operations)
    views = (*STORAGE_OPERATIONS, ScaledOp)
    operations = [op for op in block if not isinstance(op, views)]
    attention = [op for op in operations if isinstance(op, MhaOp)]
    if len(attention) != 1 or len(operations) != 2:
        names = ", ".join(op.operation.name for op in operations)
        raise op_error(function, f"expects one attn.mha and func.return, got {names}")
    op = attention[0]
    operands = list(op.operation.operands)
    if [root(operand) for operand in operands] != list(function.arguments)[: len(operands)]:
        raise op_error(op, "expects the function's first arguments as its operands, in order")
    if list(operations[1].operation.operands) not in ([op.o, op.lse], [op.o]):
        raise op_error(operations[1], "expects to return o, or o and lse, of the attn.mha")
    return op


def _captures(function: Any) -> list[Capture]:
    """The arguments after q, k, v and scale, which storage and the score modifier read."""
    arguments = list(function.arguments)[len(OPERANDS) :]
    names = names_of(function)[len(OPERANDS) :]
    return [
        Capture(name or f"capture{number}", value)
        for number, (name, value) in enumerate(zip(names, arguments, strict=True))
    ]
