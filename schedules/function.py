"""The function around an attention operation, whose arguments and results become its kernel's."""

from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect.attn import STORAGE_OPERATIONS, ColumnsOp, LatentRowsOp, MhaOp, ScaledOp
from attn_mlir.dialect.attn.names import names_of, operand_names
from attn_mlir.dialect.diagnostics import op_error

from .operands.storage import OperandStorage

Value = Any


@dataclass(frozen=True)
class Capture:
    """A function argument that the score modifier or a storage operation reads: a tensor or scalar.

    Attributes:
      name: by which the caller passes it.
      value: the argument of the function.
    """

    name: str
    value: Value


def check_function(function: Any, op: Any) -> None:
    """Checks that a function passes its arguments to the operation, and its results on, as they are.

    Raises:
      VerifyError: it computes something else as well, or mixes them up.
    """
    views = (*STORAGE_OPERATIONS, ScaledOp, ColumnsOp, LatentRowsOp)
    block = list(function.body.blocks[0].operations)
    operations = [other for other in block if not isinstance(other, views)]
    own = op.operation.name
    if len(operations) != 2:
        names = ", ".join(other.operation.name for other in operations)
        raise op_error(function, f"expects one {own} and func.return, got {names}")
    operands = _stored_tensors(op)
    if operands != list(function.arguments)[: len(operands)]:
        raise op_error(op, "expects the function's first arguments as its operands, in order")
    if list(operations[1].operation.operands) not in ([op.o, op.lse], [op.o]):
        raise op_error(operations[1], f"expects to return o, or o and lse, of the {own}")


def _stored_tensors(op: Any) -> list[Value]:
    """The tensors of an operation's operands: one of keys and of values that share their rows."""
    operands = list(op.operation.operands)
    if isinstance(op, MhaOp) and op.shares_rows:
        operands.remove(op.v)
    return [OperandStorage.of(operand).root for operand in operands]


def captures_of(function: Any) -> list[Capture]:
    """The arguments after the scale: what storage, the score modifier and optional operands read."""
    own = operand_names(function).index("scale") + 1
    arguments = list(function.arguments)[own:]
    names = names_of(function)[own:]
    return [
        Capture(name or f"capture{number}", value)
        for number, (name, value) in enumerate(zip(names, arguments, strict=True))
    ]
