"""`attention_backward` in the graphs of PyTorch, as `attn_mlir::attention_backward_call`."""

from __future__ import annotations

from typing import Any

from attn_mlir.api.attention_backward import (
    OPERAND_GRADIENTS,
    Gradients,
    attention_backward,
)
from attn_mlir.pytorch.graph_calls import GraphCall

NO_OPTIONS = ("score_mod", "mask_mod", "block_mask", "sinks")  # of the operator
OPERANDS = ("q", "k", "v", "o", "lse", "do")

BACKWARD = GraphCall(
    attention_backward, dict.fromkeys(OPERANDS, "Tensor") | {"mask": "str"}, excluded=NO_OPTIONS
)
attention_backward_call_op = BACKWARD.operator("attention_backward_call", results=OPERAND_GRADIENTS)
_in_graph = BACKWARD.in_graph(attention_backward_call_op)


def attention_backward_in_graph(*arguments: Any, **options: Any) -> Gradients:
    """The function for tracers, with the results of the function that it stands for."""
    given = BACKWARD.by_name(arguments, options)
    if any(name in given for name in NO_OPTIONS):
        return attention_backward(*arguments, **options)  # a break of the graph
    return Gradients(*_in_graph(*arguments, **options))
