"""FlashInfer's `BatchAttention`, for prefill and decoding in one batch, and its form with sinks."""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir.errors import SpecError, shown
from attn_mlir.flashinfer.options import number, operand_dtype
from attn_mlir.flashinfer.page_rows import rows_by_lengths
from attn_mlir.flashinfer.planned import Problem
from attn_mlir.flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper
from attn_mlir.flashinfer.table import NO_LIMIT, with_arguments
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import integer

torch: Any = importlib.import_module("torch")


class BatchAttention:
    """As `flashinfer.BatchAttention`: `plan` once per step, `run` once per layer."""

    def __init__(self, kv_layout: str = "NHD", device: object = "cuda") -> None:
        """A wrapper for one layout.

        Args:
          kv_layout: NHD or HND.
          device: of the calls, as PyTorch names it.

        Raises:
          SpecError: no layout, or no device that PyTorch has.
        """
        try:
            where = torch.empty(0, dtype=torch.uint8, device=device)
        except (RuntimeError, TypeError, AssertionError) as error:
            raise SpecError(f"device must be one of PyTorch's, got {shown(device, 40)}") from error
        self._wrapper = BatchPrefillWithPagedKVCacheWrapper(where, kv_layout)
        self._cap = 0.0

    @with_arguments(
        "self qo_indptr kv_indptr kv_indices kv_len_arr num_qo_heads num_kv_heads head_dim_qk "
        "head_dim_vo page_size causal sm_scale logits_soft_cap q_data_type kv_data_type "
        "use_profiler"
    )
    def plan(
        self,
        qo_indptr: Any,
        kv_indptr: Any,
        kv_indices: Any,
        kv_len_arr: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int,
        page_size: int,
        causal: bool = False,
        sm_scale: float | None = None,
        logits_soft_cap: float | None = None,
        q_data_type: object = torch.bfloat16,
        kv_data_type: object = torch.bfloat16,
    ) -> None:
        """Plans the following calls of `run`. Reads the index tensors back.

        Args:
          kv_indptr, kv_indices: [batch + 1] and [entries], the pages of each sequence.
          kv_len_arr: [batch], positions of each sequence, which its pages hold.
          others: as of `BatchPrefillWithPagedKVCacheWrapper.plan`.

        Raises:
          SpecError: an argument is wrong or has no kernel.
        """
        self._wrapper.plan(
            qo_indptr,
            *rows_by_lengths(kv_indptr, kv_indices, kv_len_arr, page_size),
            num_qo_heads,
            num_kv_heads,
            head_dim_qk,
            page_size,
            head_dim_vo=head_dim_vo,
            causal=causal,
            sm_scale=sm_scale,
            logits_soft_cap=logits_soft_cap,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
        )
        self._cap = max(number("logits_soft_cap", logits_soft_cap, 0.0), 0.0)

    @with_arguments(
        "self q kv_cache out lse k_scale v_scale logits_soft_cap profiler_buffer kv_cache_sf"
    )
    def run(
        self,
        q: Any,
        kv_cache: Any,
        out: Any = None,
        lse: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        logits_soft_cap: float = 0.0,
    ) -> tuple[Any, Any]:
        """Attention of the queries to the cache.

        Args:
          logits_soft_cap: 0, or as `plan` was told.
          others: as of `BatchPrefillWithPagedKVCacheWrapper.run`.

        Returns:
          O [qo_indptr[-1], num_qo_heads, head_dim_vo] and LSE [qo_indptr[-1], num_qo_heads] in
          base 2.

        Raises:
          SpecError: `plan` was not called, or for other sizes; or an argument is wrong.
        """
        if number("logits_soft_cap", logits_soft_cap, 0.0) not in (0.0, self._cap):
            raise SpecError(f"logits_soft_cap is {logits_soft_cap}, plan was told {self._cap}")
        scales = {"k_scale": k_scale, "v_scale": v_scale}
        run = renamed(self._wrapper.run, paged_kv_cache="kv_cache")
        return run(q, kv_cache, out=out, lse=lse, return_lse=True, **scales)


class BatchAttentionWithAttentionSinkWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """As `flashinfer.BatchAttentionWithAttentionSinkWrapper`: `run` takes sinks and a scale."""

    _has_sinks = True

    @with_arguments(
        "self float_workspace_buffer kv_layout use_cuda_graph qo_indptr_buf paged_kv_indptr_buf "
        "paged_kv_indices_buf paged_kv_last_page_len_buf custom_mask_buf mask_indptr_buf backend "
        "pos_encoding_mode use_fp16_qk_reduction q_data_type kv_data_type head_dim_qk head_dim_vo "
        "window_left"
    )
    def __init__(
        self,
        float_workspace_buffer: Any,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Any = None,
        paged_kv_indptr_buf: Any = None,
        paged_kv_indices_buf: Any = None,
        paged_kv_last_page_len_buf: Any = None,
        q_data_type: object = torch.bfloat16,
        kv_data_type: object = torch.bfloat16,
        head_dim_qk: int = 128,
        head_dim_vo: int = 128,
        window_left: int = NO_LIMIT,
    ) -> None:
        """A wrapper for one layout.

        Args:
          q_data_type, kv_data_type, head_dim_qk, head_dim_vo, window_left: the values for which
            FlashInfer compiles its kernels; `plan` must get the same values, and refuses others.
          others: as of `BatchPrefillWithPagedKVCacheWrapper`.

        Raises:
          SpecError: an argument is wrong.
        """
        buffers = {
            "qo_indptr_buf": qo_indptr_buf,
            "paged_kv_indptr_buf": paged_kv_indptr_buf,
            "paged_kv_indices_buf": paged_kv_indices_buf,
            "paged_kv_last_page_len_buf": paged_kv_last_page_len_buf,
        }
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, **buffers)
        self._has_sinks = True
        self._declared = {
            "q_data_type": operand_dtype(q_data_type, "q_data_type"),
            "kv_data_type": operand_dtype(kv_data_type, "kv_data_type"),
            "head_dim_qk": integer("head_dim_qk", head_dim_qk, 1),
            "head_dim_vo": integer("head_dim_vo", head_dim_vo, 1),
            "window_left": integer("window_left", window_left, NO_LIMIT),
        }

    def _check_declared(self, problem: Problem) -> None:
        planned = {
            "q_data_type": problem.dtype,
            "kv_data_type": problem.kv_dtype,
            "head_dim_qk": problem.head_dim,
            "head_dim_vo": problem.v_head_dim,
            "window_left": integer("window_left", problem.window_left, NO_LIMIT),
        }
        for name, value in self._declared.items():
            if planned[name] != value:
                raise SpecError(
                    f"{name} is {planned[name]}, the constructor was told {value}: tell both the "
                    "same"
                )
