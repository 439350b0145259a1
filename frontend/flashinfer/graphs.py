"""FlashInfer's names for decoding under CUDA graphs: a wrapper, and its plan of every step."""

from __future__ import annotations

from typing import Any

from attn_mlir.flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper
from attn_mlir.flashinfer.planned import Problem
from attn_mlir.flashinfer.table import ROTATION, SCORES, with_arguments


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """As `flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper`: calls are captured."""

    def __init__(
        self,
        workspace_buffer: Any,
        indptr_buffer: Any,
        indices_buffer: Any,
        last_page_len_buffer: Any,
        kv_layout: str = "NHD",
        use_tensor_cores: bool = False,
    ) -> None:
        """A wrapper with `use_cuda_graph`.

        Args:
          workspace_buffer: says on which device calls are; nothing is written to it.
          indptr_buffer: [batch + 1] i32; last_page_len_buffer: [batch] i32.
          indices_buffer: [entries] i32, room for all pages.
          kv_layout, use_tensor_cores: see `BatchDecodeWithPagedKVCacheWrapper`.

        Raises:
          SpecError: an argument is wrong.
        """
        super().__init__(
            workspace_buffer,
            kv_layout,
            True,
            use_tensor_cores,
            paged_kv_indptr_buffer=indptr_buffer,
            paged_kv_indices_buffer=indices_buffer,
            paged_kv_last_page_len_buffer=last_page_len_buffer,
        )


@with_arguments(
    "self indptr indices last_page_len num_qo_heads num_kv_heads head_dim page_size "
    "pos_encoding_mode window_left logits_soft_cap q_data_type kv_data_type data_type sm_scale "
    f"{ROTATION} non_blocking fixed_split_size disable_split_kv q_len_per_req "
    "global_override_indptr_cpu",
    options=SCORES,
)
def fast_decode_plan(
    self: BatchDecodeWithPagedKVCacheWrapper,
    indptr: Any,
    indices: Any,
    last_page_len: Any,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    q_data_type: object = None,
    kv_data_type: object = None,
    data_type: object = None,
    fixed_split_size: int | None = None,
    disable_split_kv: bool = False,
    q_len_per_req: int = 1,
    **scores: Any,
) -> None:
    """As `flashinfer.fast_decode_plan`: `plan` of a wrapper, whose dtype of O stays what it was.

    Serving engines put it in the place of a wrapper's `plan`. It reads the index tensors back, as
    `plan` does. Index tensors may be the buffers of the wrapper themselves.

    Args:
      self: the wrapper.
      others: as of `BatchDecodeWithPagedKVCacheWrapper.plan`.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    problem: Problem | None = vars(self)["_problem"]
    BatchDecodeWithPagedKVCacheWrapper.plan(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        q_data_type="float16" if q_data_type is None and data_type is None else q_data_type,
        kv_data_type=kv_data_type,
        data_type=data_type,
        o_data_type=None if problem is None else problem.out_dtype,
        fixed_split_size=fixed_split_size,
        disable_split_kv=disable_split_kv,
        q_len_per_req=q_len_per_req,
        **scores,
    )
