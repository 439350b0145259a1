"""The operator for calls of `attn_mlir.attention` in PyTorch's graphs, with all their arguments.

The tensors of a call, also those of a cache, and its options are arguments of the operator
`attn_mlir::attention_call` under their names. Its fake kernel plans the call as the operator does,
by shapes, strides and dtypes only, and refuses what planning refuses.
"""

from __future__ import annotations

from typing import Any

from attn_mlir.api.attention import attention
from attn_mlir.pytorch.autograd import DIFFERENTIABLE
from attn_mlir.pytorch.graph_calls import ModifiedCall
from attn_mlir.pytorch.shapes import wants_gradient
from attn_mlir.pytorch.traced import traced
from attn_mlir.trace import MaskMod, ScoreMod

OPERANDS = {
    "q": "Tensor", "k": "Tensor", "v": "Tensor?", "captured": "Tensor[]",
    "modifier": "str", "mask": "str", "cache": "str",
}  # fmt: skip


EAGER = ("block_mask", "q_offset", "k_offset")  # arguments that break the graph of a call

ATTENTION = ModifiedCall(
    attention,
    OPERANDS,
    cache="k",
    excluded=(*EAGER, "score_mod", "mask_mod"),
    differentiable=("q", "k", "v", "sinks"),
)


def modified_call(
    q: Any,
    k: Any,
    v: Any = None,
    *,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    mask: str,
    cache: str,
    **options: Any,
) -> tuple[Any, Any]:
    """Calls the operator, with traced modifiers.

    Args:
      options: options, and fields of a cache, by name.
    """
    is_trained = wants_gradient(q, k, v, options.get("sinks"))
    modifiers = traced(score_mod, mask_mod, q, is_trained=is_trained)
    return attention_call_op(q, k, v, modifiers.tensors, modifiers.text, mask, cache, **options)


attention_call_op = ATTENTION.operator("attention_call", results=("o", "lse"))
DIFFERENTIABLE.register_call(attention_call_op, ATTENTION)
