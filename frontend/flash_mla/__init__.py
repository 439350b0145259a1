"""Latent attention with the names and conventions of FlashMLA, for code that calls it."""

from attn_mlir.flash_mla.sparse import flash_mla_sparse_fwd

__all__ = ["flash_mla_sparse_fwd"]
