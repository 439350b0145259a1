"""`attention_backward` in the graphs of PyTorch, as `attn_mlir::attention_backward_call`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from attn_mlir.api.attention_backward import WANTED, Gradients, attention_backward
from attn_mlir.api.captured_gradients import check_names
from attn_mlir.pytorch.graph_calls import CAPTURED, ModifiedCall
from attn_mlir.pytorch.listed_blocks import LISTED, TYPES, with_block_mask
from attn_mlir.pytorch.planned import ViewOf, breaks
from attn_mlir.pytorch.traced import traced

torch: Any = importlib.import_module("torch")

MODIFIERS = ("score_mod", "mask_mod")
OPERANDS = dict.fromkeys(("q", "k", "v", "o", "lse", "do"), "Tensor") | {
    "captured": "Tensor[]", "modifier": "str", "mask": "str",
}  # fmt: skip
RESULTS = tuple(f"d{name}" for name in WANTED)


class _BackwardCall(ModifiedCall):
    """`attention_backward` with lists of blocks, and their extents, as arguments."""

    def unflattened(self, view_of: ViewOf, named: Mapping[str, Any]) -> dict[str, Any]:
        arguments = super().unflattened(view_of, named)
        return with_block_mask(arguments, arguments["q"], arguments["k"])


BACKWARD = _BackwardCall(
    attention_backward,
    OPERANDS,
    excluded=(*MODIFIERS, "block_mask"),
    extra={CAPTURED: "str[]?", **TYPES},
)
attention_backward_call_op = BACKWARD.operator(
    "attention_backward_call", results=RESULTS, has_others=True
)


def attention_backward_in_graph(*arguments: Any, **options: Any) -> Gradients:
    """`attention_backward` for tracers, with the same results.

    The options may also have lists of blocks, as of `listed_blocks`.
    """
    given = BACKWARD.by_name(arguments, options)
    untraced = MODIFIERS if torch.compiler.is_dynamo_compiling() else ()
    if breaks(given, "block_mask", *untraced):
        return attention_backward(*arguments, **options)
    lists = {name: given.pop(name) for name in LISTED if name in given}
    score_mod, mask_mod = (given.pop(name, None) for name in MODIFIERS)
    names = check_names(given.pop("captured", ()))
    modifiers = traced(score_mod, mask_mod, given["q"], is_trained=True)
    flat = {**BACKWARD.flattened(given), **lists, **({CAPTURED: names} if names else {})}
    *made, others = attention_backward_call_op(
        captured=modifiers.tensors, modifier=modifiers.text, **flat
    )
    wanted = given.get("wanted", WANTED if "sinks" in given else WANTED[:-1])
    found = (x if name in wanted else None for name, x in zip(WANTED, made, strict=True))
    return Gradients(*found, captured=dict(zip(names, others, strict=True)))
