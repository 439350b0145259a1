"""`attention_backward` in the graphs of PyTorch, as `attn_mlir::attention_backward_call`."""

from __future__ import annotations

from typing import Any

from attn_mlir.api.attention_backward import (
    MODIFIERS,
    OPERAND_GRADIENTS,
    Gradients,
    attention_backward,
)
from attn_mlir.pytorch.graph_calls import GraphCall

OPERANDS = ("q", "k", "v", "o", "lse", "do")

BACKWARD = GraphCall(
    attention_backward, dict.fromkeys(OPERANDS, "Tensor") | {"mask": "str"}, excluded=MODIFIERS
)
attention_backward_call_op = BACKWARD.operator("attention_backward_call", results=OPERAND_GRADIENTS)
_in_graph = BACKWARD.in_graph(attention_backward_call_op)


def attention_backward_in_graph(*arguments: Any, **options: Any) -> Gradients:
    """The function for tracers, with the results of the function that it stands for."""
    given = BACKWARD.by_name(arguments, options)
    if any(name in given for name in MODIFIERS):
        return attention_backward(*arguments, **options)  # which refuses them by name
    return Gradients(*_in_graph(*arguments, **options))
