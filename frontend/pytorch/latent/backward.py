"""`mla_backward` in the graphs of PyTorch, as `attn_mlir::mla_backward_call`."""

from __future__ import annotations

from typing import Any

from attn_mlir.api.latent.mla_backward import MLA_WANTED, MlaGradients, mla_backward
from attn_mlir.pytorch.graph_calls import GraphCall
from attn_mlir.pytorch.planned import breaks

OPERANDS = dict.fromkeys((*MLA_WANTED, "o", "lse", "do"), "Tensor")

MLA_BACKWARD = GraphCall(mla_backward, {**OPERANDS, "scale": "Scalar", "mask": "str"})
mla_backward_call_op = MLA_BACKWARD.operator(
    "mla_backward_call", results=[f"d{name}" for name in MLA_WANTED]
)


def mla_backward_in_graph(*arguments: Any, **options: Any) -> MlaGradients:
    """`mla_backward` for tracers, with the same results."""
    named = MLA_BACKWARD.by_name(arguments, options)
    if breaks(named):
        return mla_backward(*arguments, **options)
    made = mla_backward_call_op(**MLA_BACKWARD.flattened(named))
    wanted = named.get("wanted", MLA_WANTED)
    found = (x if name in wanted else None for name, x in zip(MLA_WANTED, made, strict=True))
    return MlaGradients(*found)
