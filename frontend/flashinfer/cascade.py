"""FlashInfer's wrapper for caches in levels: a shared prefix, and the keys of each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.compiling.dtypes import NARROW_DTYPES
from attn_mlir.compiling.schedules import MAX_F32_HEAD_DIM
from attn_mlir.errors import SpecError, shown
from attn_mlir.flashinfer.merging import merged, torch
from attn_mlir.flashinfer.options import TORCH_DTYPES, operand_dtype
from attn_mlir.flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper
from attn_mlir.flashinfer.table import NO_LIMIT, ROTATION, SCORES, with_arguments
from attn_mlir.runtime.call.scalars import as_int, flag, integer

BUFFERS = (
    *("qo_indptr_buf_arr", "paged_kv_indptr_buf_arr", "paged_kv_indices_buf_arr"),
    "paged_kv_last_page_len_buf_arr",
)
ROWS = ("qo_indptr_arr", "paged_kv_indptr_arr", "paged_kv_indices_arr", "paged_kv_last_page_len")


class MultiLevelCascadeAttentionWrapper:
    """`flashinfer.MultiLevelCascadeAttentionWrapper`: merges the states of one wrapper a level."""

    def __init__(
        self,
        num_levels: int,
        float_workspace_buffer: Any,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf_arr: Sequence[Any] | None = None,
        paged_kv_indptr_buf_arr: Sequence[Any] | None = None,
        paged_kv_indices_buf_arr: Sequence[Any] | None = None,
        paged_kv_last_page_len_buf_arr: Sequence[Any] | None = None,
    ) -> None:
        """A wrapper for so many levels.

        Args:
          others: one of each level; see `BatchPrefillWithPagedKVCacheWrapper`.

        Raises:
          SpecError: an argument is wrong.
        """
        count = integer("num_levels", num_levels, 1)
        arrays = (
            qo_indptr_buf_arr, paged_kv_indptr_buf_arr, paged_kv_indices_buf_arr,
            paged_kv_last_page_len_buf_arr,
        )  # fmt: skip
        buffers: list[Sequence[Any]] = [[None] * count] * len(BUFFERS)
        if flag("use_cuda_graph", use_cuda_graph):
            buffers = [_of_levels(n, x, count) for n, x in zip(BUFFERS, arrays, strict=True)]
        self._use_cuda_graph = use_cuda_graph
        self._levels = [
            BatchPrefillWithPagedKVCacheWrapper(
                float_workspace_buffer, kv_layout, use_cuda_graph, *level
            )
            for level in zip(*buffers, strict=True)
        ]
        self._dtype: Any = None

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """Whether calls are captured."""
        return self._use_cuda_graph

    def reset_workspace_buffer(
        self, float_workspace_buffer: Any, int_workspace_buffers: Any
    ) -> None:
        """Does nothing: there are no workspaces."""

    @with_arguments(
        "self qo_indptr_arr paged_kv_indptr_arr paged_kv_indices_arr paged_kv_last_page_len "
        "num_qo_heads num_kv_heads head_dim page_size causal pos_encoding_mode "
        f"use_fp16_qk_reduction sm_scale window_left logits_soft_cap {ROTATION} q_data_type "
        "kv_data_type",
        options=SCORES,
    )
    def plan(
        self,
        qo_indptr_arr: Sequence[Any],
        paged_kv_indptr_arr: Sequence[Any],
        paged_kv_indices_arr: Sequence[Any],
        paged_kv_last_page_len: Sequence[Any],
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        causal: bool = False,
        q_data_type: object = "float16",
        kv_data_type: object = None,
        **scores: Any,
    ) -> None:
        """Plans the following calls of `run`.

        Args:
          qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len: one of
            each level; the last entries of all qo_indptr are the number of queries.
          causal: of the last level, whose keys come last; queries see all keys of the others.
          window_left: -1 where there are several levels, each of which knows its own keys alone.
          others: see `BatchPrefillWithPagedKVCacheWrapper.plan`.

        Raises:
          SpecError: an argument is wrong or has no kernel.
        """
        count = len(self._levels)
        arrays = (qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len)
        rows = [_of_levels(n, x, count) for n, x in zip(ROWS, arrays, strict=True)]
        dtype = operand_dtype(q_data_type, "q_data_type")
        window_left = scores.get("window_left", NO_LIMIT)
        if count > 1 and as_int(window_left) != NO_LIMIT:
            raise SpecError(
                f"window_left must be -1 with {count} levels, got {shown(window_left, 40)}: each "
                "would count it over its own keys alone"
            )
        columns = integer("head_dim", head_dim, 1)
        is_causal = flag("causal", causal)
        self._dtype = None  # until all levels have their plan
        for number, level in enumerate(self._levels):
            offsets, pages, entries, last = (of_levels[number] for of_levels in rows)
            level.plan(
                offsets,
                pages,
                entries,
                last,
                num_qo_heads,
                num_kv_heads,
                head_dim,
                page_size,
                causal=is_causal and number == count - 1,
                q_data_type=q_data_type,
                kv_data_type=kv_data_type,
                o_data_type="float32" if columns <= MAX_F32_HEAD_DIM else None,
                **scores,
            )
        self._dtype = TORCH_DTYPES["bf16" if dtype in NARROW_DTYPES else dtype]

    @outside_graphs
    def run(self, q: Any, paged_kv_cache: Any) -> Any:
        """Attention of the queries to the keys of all levels.

        Args:
          q, paged_kv_cache: see `BatchPrefillWithPagedKVCacheWrapper.run`.

        Returns:
          O like q, in bf16 for a q of 8 bits.

        Raises:
          SpecError: `plan` was not called, or for other sizes; or an argument is wrong.
        """
        if self._dtype is None:
            raise SpecError("plan has not been called, or was refused: it says what run computes")
        states = [level.run(q, paged_kv_cache, return_lse=True) for level in self._levels]
        outputs, lses = (
            torch.stack(states_of_kind) for states_of_kind in zip(*states, strict=True)
        )
        return merged(outputs, lses, self._dtype)[0]

    def end_forward(self) -> None:
        """Does nothing, as there."""

    begin_forward = plan
    forward = run


def _of_levels(name: str, arrays: Any, count: int) -> Sequence[Any]:
    """One of each level.

    Raises:
      SpecError: another number of them.
    """
    is_list = isinstance(arrays, tuple | list)
    if not is_list or len(arrays) != count:  # pyright: ignore[reportUnknownArgumentType]
        raise SpecError(f"{name} must be a list of {count}, one of each level")
    return arrays  # pyright: ignore[reportUnknownVariableType]
