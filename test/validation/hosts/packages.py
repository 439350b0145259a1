"""The libraries: where their functions are, and which of ours has the name of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DECODE = "BatchDecodeWithPagedKVCacheWrapper"
PAGED, RAGGED = "BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper"
CASCADE = "MultiLevelCascadeAttentionWrapper"
SHARED = tuple(f"Batch{kind}WithSharedPrefixPagedKVCacheWrapper" for kind in ("Decode", "Prefill"))
SHARED_METHODS = ("begin_forward", "forward")
METHODS = ("__init__", "plan", "run", "forward")
DENSE = ("flash_attn_func", "flash_attn_varlen_func")
PACKED = (
    "flash_attn_qkvpacked_func",
    "flash_attn_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
)
PACKINGS = ("", "kvpacked_", "qkvpacked_")


@dataclass(frozen=True)
class Library:
    """A library.

    Attributes:
      functions: names of its functions by the file that has them, from the folder of packages on.
      ours: the module of ours that has the same names.
      order: those whose positions ours has as well; another version's functions have others.
      written: where a function's arguments are written, if that is another function.
    """

    functions: Mapping[str, tuple[str, ...]]
    ours: str
    order: tuple[str, ...]
    written: Mapping[str, str]


def _library(
    ours: str,
    functions: Mapping[str, tuple[str, ...]],
    *,
    order: tuple[str, ...] | None = None,
    written: Mapping[str, str] | None = None,
) -> Library:
    everything = tuple(name for names in functions.values() for name in names)
    return Library(functions, ours, everything if order is None else order, written or {})


LIBRARIES: Mapping[str, Library] = {
    "flash-attn": _library(
        "flash",
        {
            "flash_attn/flash_attn_interface.py": (
                *DENSE, *PACKED, "flash_attn_varlen_kvpacked_func", "flash_attn_with_kvcache",
            )
        },
        order=(*DENSE, *PACKED, "flash_attn_varlen_kvpacked_func"),
    ),
    "flash-attn-3": _library(
        "flash",
        {
            "flash_attn_interface.py": (
                *DENSE, PACKED[0], "flash_attn_combine", "flash_attn_with_kvcache",
                "get_scheduler_metadata",
            )
        },
        order=("flash_attn_combine", "flash_attn_with_kvcache"),
    ),
    "flash-attn-4": _library(
        "flash",
        {"flash_attn/cute/interface.py": (*DENSE, "flash_attn_combine")},
        order=("flash_attn_combine",),
    ),
    "vllm": _library(
        "flash",
        {
            "vllm/vllm_flash_attn/flash_attn_interface.py": (
                "flash_attn_varlen_func", "get_scheduler_metadata",
            ),
            "vllm/_custom_ops.py": ("reshape_and_cache_flash",),
            "vllm/v1/attention/ops/merge_attn_states.py": ("merge_attn_states",),
        },
        order=("reshape_and_cache_flash", "merge_attn_states"),
    ),
    "sglang": _library(
        "flash",
        {
            "sglang/jit_kernel/flash_attention.py": (
                "flash_attn_with_kvcache", "flash_attn_varlen_func",
            )
        },
        order=(),
    ),
    "flash-mla": _library(
        "flash_mla",
        {
            "flash_mla/flash_mla_interface.py": (
                "get_mla_metadata", "flash_mla_with_kvcache", "flash_mla_sparse_fwd",
                "flash_attn_varlen_func", "flash_attn_varlen_qkvpacked_func",
                "flash_attn_varlen_kvpacked_func",
            )
        },
    ),
    "flashinfer-python": _library(
        "flashinfer",
        {
            "flashinfer/decode.py": (
                *(f"{DECODE}.{method}" for method in METHODS), "single_decode_with_kv_cache",
                f"CUDAGraph{DECODE}.__init__", "fast_decode_plan",
                "trtllm_batch_decode_with_kv_cache",
            ),
            "flashinfer/prefill.py": (
                *(f"{wrapper}.{method}" for wrapper in (PAGED, RAGGED) for method in METHODS),
                "single_prefill_with_kv_cache", "trtllm_batch_context_with_kv_cache",
            ),
            "flashinfer/attention/_core.py": (
                *(f"BatchAttention.{method}" for method in ("__init__", "plan", "run")),
                "BatchAttentionWithAttentionSinkWrapper.__init__",
            ),
            "flashinfer/cascade.py": (
                *(f"{x}.{method}" for x in SHARED for method in ("__init__", *SHARED_METHODS)),
                *(f"{CASCADE}.{method}" for method in ("__init__", "plan", "run")),
                "merge_state", "merge_state_in_place", "merge_states",
            ),
            "flashinfer/page.py": (
                "append_paged_kv_cache", "append_paged_mla_kv_cache", "get_batch_indices_positions",
            ),
            "flashinfer/mla/_core.py": ("trtllm_batch_decode_with_kv_cache_mla",),
            "flashinfer/mla/_batch_mla/_wrapper.py": (
                *(f"BatchMLAPagedAttentionWrapper.{method}" for method in METHODS[:3]),
            ),
        },
        written={f"{DECODE}.plan": f"{DECODE}._plan_impl"},
    ),
    "ring-flash-attn": _library(
        "ring_flash_attn",
        {
            f"ring_flash_attn/{file}.py": tuple(f"{stem}_{x}func" for x in PACKINGS)
            for file, stem in (
                ("ring_flash_attn", "ring_flash_attn"),
                ("zigzag_ring_flash_attn", "zigzag_ring_flash_attn"),
                ("stripe_flash_attn", "stripe_flash_attn"),
                ("ring_flash_attn_varlen", "ring_flash_attn_varlen"),
                ("zigzag_ring_flash_attn_varlen", "zigzag_ring_flash_attn_varlen"),
            )
        }
        | {
            "ring_flash_attn/llama3_flash_attn_varlen.py": (
                "llama3_flash_attn_prepare_cu_seqlens",
                *(f"llama3_flash_attn_varlen_{x}func" for x in PACKINGS),
            )
        },
    ),
    "diffusers": _library(
        "diffusers.backend",
        {"diffusers/models/attention_dispatch.py": ("attention",)},
        written={"attention": "_native_attention"},
    ),
    "jax": _library("jax.dot_product", {"jax/_src/nn/functions.py": ("dot_product_attention",)}),
    "torch": _library(
        "torch",
        {
            "torch/_C/_nn.pyi": ("scaled_dot_product_attention",),
            "torch/nn/attention/flex_attention.py": ("flex_attention",),
        },
    ),
}  # fmt: skip
