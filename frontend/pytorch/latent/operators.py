"""Latent attention in the graphs of PyTorch: an operator for each of its three functions.

`attn_mlir::mla_call`, `attn_mlir::sparse_mla_call` and `attn_mlir::mla_decode_call` take the
operands and options of `mla`, `sparse_mla` and `mla_decode` under their names, and a latent cache
as its rows and the names of its fields. Lists of rows for `mla_decode` are `lists`, since a cache
may have `indices`.
"""

from __future__ import annotations

from typing import Any

from attn_mlir.api.latent.mla import mla
from attn_mlir.api.latent.mla_backward import MLA_WANTED
from attn_mlir.api.latent.mla_decode import mla_decode
from attn_mlir.api.latent.sparse_mla import sparse_mla
from attn_mlir.pytorch.graph_calls import VALUES, GraphCall
from attn_mlir.pytorch.latent.autograd import DIFFERENTIABLE, trained
from attn_mlir.pytorch.planned import breaks
from attn_mlir.pytorch.shapes import wants_gradient

SCALED = {"scale": "Scalar"}
CACHED = {**SCALED, "mask": "str", "cache": "str"}

MLA = GraphCall(
    mla,
    dict.fromkeys(MLA_WANTED, "Tensor") | CACHED,
    cache="k_rope",
    rows=("k_rope", VALUES),
    differentiable=MLA_WANTED,
)
SPARSE_MLA = GraphCall(sparse_mla, dict.fromkeys(("q", "kv", "indices"), "Tensor") | SCALED)
MLA_DECODE = GraphCall(
    mla_decode,
    {"q": "Tensor", "rows": "Tensor", **CACHED},
    cache="cache",
    rows=("rows", VALUES),
    renamed={"indices": "lists"},
    only_caches=True,
)

mla_call_op = MLA.operator("mla_call", results=("o", "lse"))
DIFFERENTIABLE.register_call(mla_call_op, MLA)
sparse_mla_call_op = SPARSE_MLA.operator("sparse_mla_call", results=("o", "lse", "max_logits"))
mla_decode_call_op = MLA_DECODE.operator("mla_decode_call", results=("o", "lse"))

sparse_mla_in_graph = SPARSE_MLA.in_graph(sparse_mla_call_op)
mla_decode_in_graph = MLA_DECODE.in_graph(mla_decode_call_op)

_mla_in_graph = MLA.in_graph(mla_call_op)


def mla_in_graph(*arguments: Any, **options: Any) -> Any:
    """`mla` for tracers; one node of autograd, with LSE, if a gradient is requested."""
    named = MLA.by_name(arguments, options)
    if not wants_gradient(*(named.get(name) for name in MLA_WANTED)):
        return _mla_in_graph(*arguments, **options)
    if breaks(named):
        return trained(*arguments, **options)
    o, lse = _mla_in_graph(**{**named, "return_lse": True})
    return (o, lse) if named.get("return_lse") else o
