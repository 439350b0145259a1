"""FlashInfer's names and signatures (0.6 and later) over attn-mlir's kernels.

`__all__` lists the functions; each says what it refuses.
"""

from attn_mlir.flashinfer.append import (
    append_paged_kv_cache,
    append_paged_mla_kv_cache,
    get_batch_indices_positions,
)
from attn_mlir.flashinfer.batch_attention import (
    BatchAttention,
    BatchAttentionWithAttentionSinkWrapper,
)
from attn_mlir.flashinfer.cascade import MultiLevelCascadeAttentionWrapper
from attn_mlir.flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper
from attn_mlir.flashinfer.graphs import (
    CUDAGraphBatchDecodeWithPagedKVCacheWrapper,
    fast_decode_plan,
)
from attn_mlir.flashinfer.latent.decoding import trtllm_batch_decode_with_kv_cache_mla
from attn_mlir.flashinfer.latent.wrapper import BatchMLAPagedAttentionWrapper
from attn_mlir.flashinfer.merging import merge_state, merge_state_in_place, merge_states
from attn_mlir.flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper
from attn_mlir.flashinfer.ragged import BatchPrefillWithRaggedKVCacheWrapper
from attn_mlir.flashinfer.shared_prefix import (
    BatchDecodeWithSharedPrefixPagedKVCacheWrapper,
    BatchPrefillWithSharedPrefixPagedKVCacheWrapper,
)
from attn_mlir.flashinfer.single import single_decode_with_kv_cache, single_prefill_with_kv_cache
from attn_mlir.flashinfer.trtllm import (
    trtllm_batch_context_with_kv_cache,
    trtllm_batch_decode_with_kv_cache,
)

__all__ = [
    "BatchAttention",
    "BatchAttentionWithAttentionSinkWrapper",
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchDecodeWithSharedPrefixPagedKVCacheWrapper",
    "BatchMLAPagedAttentionWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "BatchPrefillWithSharedPrefixPagedKVCacheWrapper",
    "CUDAGraphBatchDecodeWithPagedKVCacheWrapper",
    "MultiLevelCascadeAttentionWrapper",
    "append_paged_kv_cache",
    "append_paged_mla_kv_cache",
    "fast_decode_plan",
    "get_batch_indices_positions",
    "merge_state",
    "merge_state_in_place",
    "merge_states",
    "single_decode_with_kv_cache",
    "single_prefill_with_kv_cache",
    "trtllm_batch_context_with_kv_cache",
    "trtllm_batch_decode_with_kv_cache",
    "trtllm_batch_decode_with_kv_cache_mla",
]
