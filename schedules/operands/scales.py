"""Scales (descales) of Q, K and V, folded into the softmax scale and 1 / l.

Each operand has one scale per sequence and key-value head, so a work tile has three: those of Q and
K multiply the softmax scale, that of V multiplies 1 / l. No single element is multiplied. Scales of
positions are in `position_scales`.
"""

from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir

from .. import emit as b

Value = Any


@dataclass(frozen=True)
class OperandScales:
    """For each operand a table [1 or batch, 1 or kv_heads] of f32, or None for no scale."""

    q: Value | None
    k: Value | None
    v: Value | None

    def of_scores(self, scale: Value, batch: Value, kv_head: Value) -> Value:
        """The scale of a work tile's scores: `scale` times the scales of Q and K."""
        for table in (self.q, self.k):
            if table is not None:
                scale = b.fmul(scale, _element(table, batch, kv_head))
        return scale

    def of_output(self, batch: Value, kv_head: Value) -> Value | None:
        """The scale of V for a work tile, which multiplies its output; None without one."""
        return None if self.v is None else _element(self.v, batch, kv_head)


def _element(table: Value, batch: Value, kv_head: Value) -> Value:
    """One scale of a table; in a dimension of extent 1 every coordinate gives the same one."""
    return ws.ElementOp(table, [batch, kv_head], ir.F32Type.get()).value
