"""FlashInfer's wrappers for a prefix that all sequences share, and pages of their own."""

from __future__ import annotations

from typing import Any

from attn_mlir.flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper
from attn_mlir.flashinfer.merging import merge_state
from attn_mlir.flashinfer.options import checked_layout
from attn_mlir.flashinfer.prefill import ROWS, BatchPrefillWithPagedKVCacheWrapper
from attn_mlir.flashinfer.single import single_prefill_with_kv_cache
from attn_mlir.flashinfer.table import (
    DECODE_SHARED_PLAN,
    PREFILL_SHARED_PLAN,
    ROTATION,
    SHARED_SIZES,
    UNIQUE_PAGES,
    with_arguments,
)
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.tensors import check_has_memory, view


class _SharedPrefix:
    """Base of both wrappers: `begin_forward` once per step, `forward` once per layer.

    Args:
      wrapper: for the pages of each sequence.
    """

    def __init__(self, wrapper: Any, kv_layout: str) -> None:
        self._wrapper, self._kv_layout = wrapper, checked_layout(kv_layout)

    def reset_workspace_buffer(
        self, float_workspace_buffer: Any, int_workspace_buffer: Any
    ) -> None:
        """Does nothing: there are no workspaces."""

    def end_forward(self) -> None:
        """Does nothing, as there."""

    def _merged(self, q: Any, shared: tuple[Any, Any], pages: Any, **scores: Any) -> Any:
        """O of the queries to the shared keys, all of which they see, and to those of pages."""
        sm_scale = scores.get("sm_scale")
        options = {"kv_layout": self._kv_layout, "sm_scale": sm_scale, "return_lse": True}
        for name, x in zip(("k_shared", "v_shared"), shared, strict=True):
            check_has_memory(view(x, name), name)
        to_pages = renamed(self._wrapper.forward_return_lse, paged_kv_cache="unique_kv_cache")
        own = to_pages(q, pages, **scores)  # refuses before any launch
        prefix = single_prefill_with_kv_cache(q, *shared, **options)
        return merge_state(*prefix, *own)[0]


class BatchDecodeWithSharedPrefixPagedKVCacheWrapper(_SharedPrefix):
    """As `flashinfer.BatchDecodeWithSharedPrefixPagedKVCacheWrapper`."""

    def __init__(self, float_workspace_buffer: Any, kv_layout: str = "NHD") -> None:
        """A wrapper for one layout; see `BatchDecodeWithPagedKVCacheWrapper`."""
        wrapper = BatchDecodeWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)
        super().__init__(wrapper, kv_layout)

    @with_arguments(f"self {UNIQUE_PAGES} {SHARED_SIZES}", options=DECODE_SHARED_PLAN)
    def begin_forward(self, **options: Any) -> None:
        """Plans the following calls of `forward`.

        Args:
          unique_kv_indptr, unique_kv_indices, unique_kv_last_page_len: pages behind the prefix, as
            indptr, indices and last_page_len of `BatchDecodeWithPagedKVCacheWrapper.plan`.
          num_qo_heads, num_kv_heads, head_dim, page_size: as there.
          data_type: of q and of all keys.

        Raises:
          SpecError: as of `BatchDecodeWithPagedKVCacheWrapper.plan`.
        """
        DECODE_SHARED_PLAN.call(self._wrapper.plan, given=options)

    def forward(self, q: Any, k_shared: Any, v_shared: Any, unique_kv_cache: Any) -> Any:
        """Attention of one query of each sequence to the prefix and to its pages.

        Args:
          q: [batch, num_qo_heads, head_dim].
          k_shared, v_shared: [keys, num_kv_heads, head_dim] (NHD) or [num_kv_heads, keys,
            head_dim] (HND).
          unique_kv_cache: as `paged_kv_cache` of `BatchDecodeWithPagedKVCacheWrapper.run`.

        Returns:
          O like q.

        Raises:
          SpecError: `begin_forward` was not called, or for other sizes; or an argument is wrong.
        """
        return self._merged(q, (k_shared, v_shared), unique_kv_cache)


class BatchPrefillWithSharedPrefixPagedKVCacheWrapper(_SharedPrefix):
    """As `flashinfer.BatchPrefillWithSharedPrefixPagedKVCacheWrapper`."""

    def __init__(self, float_workspace_buffer: Any, kv_layout: str = "NHD") -> None:
        """A wrapper for one layout; see `BatchPrefillWithPagedKVCacheWrapper`."""
        wrapper = BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)
        super().__init__(wrapper, kv_layout)

    @with_arguments(f"self qo_indptr {' '.join(ROWS)} {SHARED_SIZES}", options=PREFILL_SHARED_PLAN)
    def begin_forward(self, **options: Any) -> None:
        """Plans the following calls of `forward`.

        Args:
          data_type: of q and of all keys, which FlashInfer takes to be float16.
          others: as of `BatchPrefillWithPagedKVCacheWrapper.plan`, of the pages behind the prefix.

        Raises:
          SpecError: as there.
        """
        PREFILL_SHARED_PLAN.call(self._wrapper.plan, given=options)

    @with_arguments(
        f"self q k_shared v_shared unique_kv_cache causal use_fp16_qk_reduction sm_scale {ROTATION}"
    )
    def forward(
        self,
        q: Any,
        k_shared: Any,
        v_shared: Any,
        unique_kv_cache: Any,
        causal: bool = False,
        sm_scale: float | None = None,
    ) -> Any:
        """Attention of the queries to the prefix and to the pages of their sequence.

        Args:
          q: [qo_indptr[-1], num_qo_heads, head_dim].
          k_shared, v_shared: [keys, num_kv_heads, head_dim] (NHD) or [num_kv_heads, keys,
            head_dim] (HND); every query sees them.
          unique_kv_cache: as `paged_kv_cache` of `BatchPrefillWithPagedKVCacheWrapper.run`.
          causal: of the keys in pages.
          sm_scale: of all scores; 1 / sqrt(head_dim) if None.

        Returns:
          O like q.

        Raises:
          SpecError: `begin_forward` was not called, or for other sizes; or an argument is wrong.
        """
        shared = (k_shared, v_shared)
        return self._merged(q, shared, unique_kv_cache, causal=causal, sm_scale=sm_scale)
