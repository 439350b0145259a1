"""Attention with the names and conventions of FlashAttention, for code that calls it or a fork.

Layouts, offsets and the alignment of masks at the last key are ours as well: what differs is names,
that a window of -1 has no limit, and that a softcap of 0 is none. Arrays of numpy, torch or cupy.
Autograd of PyTorch gets the gradients of q, k and v.
"""

from attn_mlir.flash.functions import (
    flash_attn_combine,
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from attn_mlir.flash.kvcache import flash_attn_with_kvcache
from attn_mlir.flash.passes import (
    flash_attn_backward as _flash_attn_backward,
)
from attn_mlir.flash.passes import (
    flash_attn_forward as _flash_attn_forward,
)
from attn_mlir.flash.passes import (
    flash_attn_varlen_backward as _flash_attn_varlen_backward,
)
from attn_mlir.flash.passes import (
    flash_attn_varlen_forward as _flash_attn_varlen_forward,
)
from attn_mlir.flash.serving import (
    get_scheduler_metadata,
    merge_attn_states,
    reshape_and_cache_flash,
)

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "_flash_attn_varlen_backward",
    "_flash_attn_varlen_forward",
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
    "merge_attn_states",
    "reshape_and_cache_flash",
]
