"""Gradients of latent attention before absorption in PyTorch's autograd."""

from __future__ import annotations

from attn_mlir.api.latent.mla import mla
from attn_mlir.api.latent.mla_backward import MLA_WANTED, mla_backward
from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.pytorch.differentiable_calls import DifferentiableCall
from attn_mlir.pytorch.latent.backward import mla_backward_in_graph

OF_FORWARD = (
    *("return_lse", "out_dtype", "query_tiles", "tile_order", "num_qk_stages", "num_pv_stages"),
    *("ordered_softmax", "sm_margin"),
)  # arguments of `mla` that the gradients do not depend on


DIFFERENTIABLE = DifferentiableCall(
    mla,
    mla_backward,
    mla_backward_in_graph,
    MLA_WANTED,
    OF_FORWARD,
    in_caches={"k_rope": "keys"},
)
trained = outside_graphs(DIFFERENTIABLE.apply)  # `mla` of operands that require a gradient
