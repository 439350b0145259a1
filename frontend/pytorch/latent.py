"""Latent attention in the graphs of PyTorch: an operator for each of its three functions.

`attn_mlir::mla_call`, `attn_mlir::sparse_mla_call` and `attn_mlir::mla_decode_call` take the
operands and options of `mla`, `sparse_mla` and `mla_decode` under their names, and a latent cache
as its rows and the names of its fields. Lists of rows for `mla_decode` are `lists`, since a cache
may have `indices`.
"""

from __future__ import annotations

from typing import Any

from attn_mlir.api.mla import mla
from attn_mlir.api.mla_decode import mla_decode
from attn_mlir.api.sparse_mla import sparse_mla
from attn_mlir.caches import CACHES
from attn_mlir.pytorch.graph_calls import VALUES, GraphCall
from attn_mlir.pytorch.planned import breaks

SCALED = {"scale": "Scalar"}
CACHED = {**SCALED, "mask": "str", "cache": "str"}

MLA = GraphCall(
    mla,
    dict.fromkeys(("q_nope", "q_rope", "k_nope", "k_rope", "v"), "Tensor") | CACHED,
    cache="k_rope",
    rows=("k_rope", VALUES),
)
SPARSE_MLA = GraphCall(sparse_mla, dict.fromkeys(("q", "kv", "indices"), "Tensor") | SCALED)
MLA_DECODE = GraphCall(
    mla_decode,
    {"q": "Tensor", "rows": "Tensor", **CACHED},
    cache="cache",
    rows=("rows", VALUES),
    renamed={"indices": "lists"},
)


def mla_in_graph(*arguments: Any, **options: Any) -> Any:
    """`mla` as an operator in a graph; arguments that no graph can hold break the graph."""
    given = MLA.named(arguments, options)
    if breaks(given):
        return mla(*arguments, **options)
    o, lse = mla_call_op(**MLA.taken_apart(given))
    return (o, lse) if given.get("return_lse") else o


def sparse_mla_in_graph(*arguments: Any, **options: Any) -> Any:
    """`sparse_mla` as an operator in a graph; arguments that no graph can hold break the graph."""
    given = SPARSE_MLA.named(arguments, options)
    if breaks(given):
        return sparse_mla(*arguments, **options)
    return sparse_mla_call_op(**SPARSE_MLA.taken_apart(given))


def mla_decode_in_graph(*arguments: Any, **options: Any) -> Any:
    """`mla_decode` as an operator in a graph; arguments that no graph can hold break the graph."""
    given = MLA_DECODE.named(arguments, options)
    if breaks(given) or not isinstance(given.get("cache"), CACHES):
        return mla_decode(*arguments, **options)
    return mla_decode_call_op(**MLA_DECODE.taken_apart(given))


_, mla_call_op = MLA.operator("mla_call", results=("o", "lse"))
_, sparse_mla_call_op = SPARSE_MLA.operator("sparse_mla_call", results=("o", "lse", "max_logits"))
_, mla_decode_call_op = MLA_DECODE.operator("mla_decode_call", results=("o", "lse"))
