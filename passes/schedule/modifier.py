"""The score modifier of an attention operation, evaluated where the scores are."""

from collections.abc import Mapping
from typing import Any

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import arith, ir, tensor
from attn_mlir.dialect.attn import KeepOp
from attn_mlir.passes.diagnostics import op_error

from . import builder as b

Value = Any


class Modifier:
    """The region of an `attn.mha`, with what it reads from outside.

    Attributes:
      is_identity: it changes and hides nothing.
    """

    def __init__(self, op: attn.MhaOp, captured: Mapping[Value, Value]):
        """Prepares the region for use in a kernel.

        Args:
          op: the operation.
          captured: values defined outside the region -> arguments of the kernel.
        """
        self.is_identity = op.has_identity_score_mod
        self.hides = op.hides_scores
        self._block = op.score_mod.blocks[0]
        self._captured = captured

    def __call__(self, score: Value, batch: Value, head: Value, q: Value, k: Value) -> Value:
        """The modified score at the insertion point; hidden ones are -inf.

        Raises:
          VerifyError: the region holds something that is not element-wise.
        """
        values = dict(self._captured)
        values.update(zip(self._block.arguments, (score, batch, head, q, k), strict=True))
        hidden = b.f32_constant(float("-inf"))
        conditions: list[Value] = []
        *body, last = self._block.operations
        for op in body:
            if isinstance(op, KeepOp):
                conditions.append(values[op.condition])
            else:
                self._evaluate(op, values)
        result = values[last.value]
        for condition in conditions:
            result = b.select(condition, result, hidden)
        return result

    def _evaluate(self, op: Any, values: dict[Value, Value]) -> None:
        """Repeats one operation of the region."""
        operation = op.operation
        if len(operation.regions) or len(operation.results) != 1:
            raise op_error(op, "is not element-wise, so a score_mod cannot hold it")
        operands = [values[operand] for operand in operation.operands]
        (result,) = operation.results
        if isinstance(op, arith.IndexCastOp):  # coordinates stay i32
            values[result] = operands[0]
        elif isinstance(op, tensor.ExtractOp):
            source, *coords = operands
            values[result] = ws.ElementOp(source, coords, result.type).value
        elif operation.name.startswith(("arith.", "math.")):
            attributes = dict(operation.attributes.items())
            made = ir.Operation.create(
                operation.name, results=[result.type], operands=operands, attributes=attributes
            )
            values[result] = made.result
        else:
            raise op_error(op, "is not element-wise, so a score_mod cannot hold it")
