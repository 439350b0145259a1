"""Every check of a GPU, in the order in which they run."""

from __future__ import annotations

from attn_mlir.validation.gpu import (
    activation,
    appending,
    attention,
    decode,
    drawn,
    empty_boxes,
    gradients,
    latent,
    launches,
    narrow,
    pytorch_graphs,
    recipes,
    shards,
)
from attn_mlir.validation.gpu.check import CHECKS, checks

__all__ = [
    "CHECKS",
    "activation",
    "appending",
    "attention",
    "checks",
    "decode",
    "drawn",
    "empty_boxes",
    "gradients",
    "latent",
    "launches",
    "narrow",
    "pytorch_graphs",
    "recipes",
    "shards",
]
