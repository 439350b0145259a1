"""`convert-attn-to-ws`: replaces functions of one attention operation by kernels."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect._mlir import func, ir
from attn_mlir.dialect.attn import MhaOp
from attn_mlir.dialect.attn.builder import ARGUMENT_DEFAULT
from attn_mlir.passes.diagnostics import op_error
from attn_mlir.passes.registry import register

from .mha import schedule_mha


@register
@dataclass(frozen=True)
class ConvertAttnToWs:
    """Replaces each function that holds an `attn.mha` and nothing else by a `ws.kernel`.

    The operation must have been configured; the kernel takes the function's name.
    """

    name: ClassVar[str] = "convert-attn-to-ws"

    def run(self, module: Any) -> None:
        """Converts; no `attn` operation is left.

        Raises:
          VerifyError: a function that computes something else as well, or an operation that the
            schedule does not cover.
        """
        for function in list(ir.get_ops_of_type(module, func.FuncOp)):
            op = _only_attention(function)
            with function.operation.location, ir.InsertionPoint(function.operation):
                schedule_mha(op, function.sym_name.value, _default_scale(function, op))
            function.operation.erase()


def _only_attention(function: Any) -> MhaOp:
    """The one operation of a function whose arguments and results it takes over as they are."""
    operations = list(function.body.blocks[0].operations)
    attention = [op for op in operations if isinstance(op, MhaOp)]
    if len(attention) != 1 or len(operations) != 2:
        names = ", ".join(op.operation.name for op in operations)
        raise op_error(function, f"expects one attn.mha and func.return, got {names}")
    op = attention[0]
    arguments = list(function.arguments)
    if list(op.operation.operands) != arguments:
        raise op_error(op, "expects the function's arguments as its operands, in order")
    if list(operations[1].operation.operands) != [op.o, op.lse]:
        raise op_error(operations[1], "expects to return o and lse of the attn.mha")
    return op


def _default_scale(function: Any, op: MhaOp) -> float | None:
    """The default that the scale's argument carries."""
    position = list(function.arguments).index(op.scale)
    attributes = function.operation.attributes
    if "arg_attrs" not in attributes:
        return None
    entries = ir.DictAttr(ir.ArrayAttr(attributes["arg_attrs"])[position])
    if ARGUMENT_DEFAULT not in entries:
        return None
    return ir.FloatAttr(entries[ARGUMENT_DEFAULT]).value
