"""The functions that PyTorch's tracers see, by the names of those of `attn_mlir.calls`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attn_mlir.pytorch.appending import append_in_graph
from attn_mlir.pytorch.attention import attention_in_graph
from attn_mlir.pytorch.backward import attention_backward_in_graph
from attn_mlir.pytorch.latent.backward import mla_backward_in_graph
from attn_mlir.pytorch.latent.operators import (
    mla_decode_in_graph,
    mla_in_graph,
    sparse_mla_in_graph,
)

IN_GRAPHS: Mapping[str, Callable[..., Any]] = {
    "attention": attention_in_graph,
    "attention_backward": attention_backward_in_graph,
    "append_kv": append_in_graph,
    "mla": mla_in_graph,
    "mla_backward": mla_backward_in_graph,
    "sparse_mla": sparse_mla_in_graph,
    "mla_decode": mla_decode_in_graph,
}
