"""`attention_backward` in the graphs of PyTorch, as `attn_mlir::attention_backward_call`."""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir.api.attention_backward import WANTED, Gradients, attention_backward
from attn_mlir.api.captured_gradients import check_names
from attn_mlir.pytorch.graph_calls import CAPTURED, ModifiedCall
from attn_mlir.pytorch.planned import breaks
from attn_mlir.pytorch.traced import traced

torch: Any = importlib.import_module("torch")

MODIFIERS = ("score_mod", "mask_mod")
OPERANDS = dict.fromkeys(("q", "k", "v", "o", "lse", "do"), "Tensor") | {
    "captured": "Tensor[]", "modifier": "str", "mask": "str",
}  # fmt: skip
RESULTS = tuple(f"d{name}" for name in WANTED)

BACKWARD = ModifiedCall(
    attention_backward,
    OPERANDS,
    excluded=(*MODIFIERS, "block_mask"),
    extra={CAPTURED: "str[]?"},
)
attention_backward_call_op = BACKWARD.operator(
    "attention_backward_call", results=RESULTS, has_others=True
)


def attention_backward_in_graph(*arguments: Any, **options: Any) -> Gradients:
    """The function for tracers, with the results of the function that it stands for."""
    given = BACKWARD.by_name(arguments, options)
    untraced = MODIFIERS if torch.compiler.is_dynamo_compiling() else ()
    if breaks(given, "block_mask", *untraced):
        return attention_backward(*arguments, **options)
    mods = [given.pop(name, None) for name in MODIFIERS]
    names = check_names(given.pop("captured", ()))
    modifiers = traced(*mods, is_trained=True)
    flat = {**BACKWARD.flattened(given), **({CAPTURED: names} if names else {})}
    *made, others = attention_backward_call_op(
        captured=modifiers.tensors, modifier=modifiers.text, **flat
    )
    wanted = given.get("wanted", WANTED if "sinks" in given else WANTED[:-1])
    found = (x if name in wanted else None for name, x in zip(WANTED, made, strict=True))
    return Gradients(*found, captured=dict(zip(names, others, strict=True)))
