"""`attention_backward` in the graphs of PyTorch, as `attn_mlir::attention_backward_call`."""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir.api.attention_backward import OPERAND_GRADIENTS, Gradients, attention_backward
from attn_mlir.pytorch.graph_calls import ModifiedCall
from attn_mlir.pytorch.planned import breaks
from attn_mlir.pytorch.readable import as_tensor
from attn_mlir.trace import trace

torch: Any = importlib.import_module("torch")

MODIFIERS = ("score_mod", "mask_mod")
OPERANDS = dict.fromkeys(("q", "k", "v", "o", "lse", "do"), "Tensor") | {
    "captured": "Tensor[]", "modifier": "str", "mask": "str",
}  # fmt: skip
RESULTS = (*OPERAND_GRADIENTS, "dsinks")

BACKWARD = ModifiedCall(attention_backward, OPERANDS, excluded=(*MODIFIERS, "block_mask"))
attention_backward_call_op = BACKWARD.operator("attention_backward_call", results=RESULTS)


def attention_backward_in_graph(*arguments: Any, **options: Any) -> Gradients:
    """The function for tracers, with the results of the function that it stands for."""
    given = BACKWARD.by_name(arguments, options)
    untraced = MODIFIERS if torch.compiler.is_dynamo_compiling() else ()
    if breaks(given, "block_mask", *untraced):
        return attention_backward(*arguments, **options)
    mods = [given.pop(name, None) for name in MODIFIERS]
    captured: list[Any] = []
    modifier = ""
    if any(mod is not None for mod in mods):
        program, arrays = trace(*mods)
        assert program is not None
        pairs = zip(arrays.values(), program.tensors, strict=True)
        captured = [as_tensor(x, tensor.rank) for x, tensor in pairs]
        modifier = program.canonical()
    dq, dk, dv, dsinks = attention_backward_call_op(
        captured=captured, modifier=modifier, **BACKWARD.flattened(given)
    )
    return Gradients(dq, dk, dv, dsinks if "sinks" in given else None)
