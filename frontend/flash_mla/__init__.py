"""Latent attention with the names and conventions of FlashMLA, for code that calls it."""

from attn_mlir.flash_mla.decoding import (
    FlashMLASchedMeta,
    flash_mla_with_kvcache,
    get_mla_metadata,
)
from attn_mlir.flash_mla.narrow_decoding import (
    flash_mla_with_kvcache_fp8,
    get_mla_metadata_dense_fp8,
)
from attn_mlir.flash_mla.prefill import (
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from attn_mlir.flash_mla.sparse import flash_mla_sparse_fwd

__all__ = [
    "FlashMLASchedMeta",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_mla_sparse_fwd",
    "flash_mla_with_kvcache",
    "flash_mla_with_kvcache_fp8",
    "get_mla_metadata",
    "get_mla_metadata_dense_fp8",
]
