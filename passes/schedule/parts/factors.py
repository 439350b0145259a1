"""Factors by which stored elements of Q, K and V are multiplied, folded into the scale and 1 / l.

Here each operand has one factor per sequence and key-value head, so a work tile has three: those of Q
and K multiply the scale of its scores, that of V multiplies 1 / l. No element is multiplied by itself.
Factors of single positions are in `position_factors`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.passes.infrastructure.diagnostics import op_error

from . import builder as b
from .operands import storage_steps

Value = Any


@dataclass(frozen=True)
class Factors:
    """For each operand a table [1 or batch, 1 or kv_heads] of f32, or None for no factor."""

    q: Value | None
    k: Value | None
    v: Value | None

    def of_scores(self, scale: Value, batch: Value, kv_head: Value) -> Value:
        """The scale of a work tile's scores: `scale` times the factors of Q and K."""
        for table in (self.q, self.k):
            if table is not None:
                scale = b.fmul(scale, _element(table, batch, kv_head))
        return scale

    def of_output(self, batch: Value, kv_head: Value) -> Value | None:
        """The factor of V for a work tile, which multiplies its output; None without one."""
        return None if self.v is None else _element(self.v, batch, kv_head)


def _element(table: Value, batch: Value, kv_head: Value) -> Value:
    """One factor of a table; in a dimension of extent 1 every coordinate gives the same one."""
    return ws.ElementOp(table, [batch, kv_head], ir.F32Type.get()).value


def factors_of(op: attn.MhaOp, arguments: Mapping[Value, Value]) -> Factors:
    """The factors of an operation's operands.

    Args:
      op: the operation.
      arguments: the function's arguments -> those of the kernel.

    Raises:
      VerifyError: an operand has two tables of factors.
    """
    return Factors(*(_table(op, operand, arguments) for operand in (op.q, op.k, op.v)))


def values_factors(op: attn.MlaOp, arguments: Mapping[Value, Value]) -> Factors:
    """Those of v alone, as `factors_of`: what Q and K have are factors of rows."""
    return Factors(None, None, _table(op, op.v, arguments))


def _table(
    op: attn.MhaOp | attn.MlaOp, operand: Value, arguments: Mapping[Value, Value]
) -> Value | None:
    steps = storage_steps(operand)
    found = [step for step in steps if isinstance(step, attn.ScaledOp)]
    if len(found) > 1:
        raise op_error(op, "expects operands that are scaled once")
    if not found or found[0].is_per_position:
        return None
    return arguments[found[0].factors]
