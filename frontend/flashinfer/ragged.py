"""FlashInfer's wrapper for ragged queries and keys."""

from __future__ import annotations

import functools
from typing import Any

from attn_mlir.adapters import Options, passed
from attn_mlir.compiling.splits import MAX_SPLITS
from attn_mlir.errors import SpecError
from attn_mlir.flashinfer.options import by_position, indices
from attn_mlir.flashinfer.planned import Problem
from attn_mlir.flashinfer.positions import positions_in, rotated
from attn_mlir.flashinfer.prefill import QUERIES, PrefillWrapper
from attn_mlir.flashinfer.table import (
    OF_RUN,
    RAGGED_FORWARD,
    RAGGED_PLAN,
    RAGGED_RUN,
    ROTATED,
    ROTATION,
    with_arguments,
)
from attn_mlir.flashinfer.variants import declares_sinks
from attn_mlir.flashinfer.wrapper import lengths_of

KEYS = "kv_indptr_buf"


class BatchPrefillWithRaggedKVCacheWrapper(PrefillWrapper):
    """As `flashinfer.BatchPrefillWithRaggedKVCacheWrapper`: keys of all sequences one behind the
    other.
    """

    @with_arguments(
        "self float_workspace_buffer kv_layout use_cuda_graph qo_indptr_buf kv_indptr_buf "
        "custom_mask_buf mask_indptr_buf backend jit_args jit_kwargs variant_owns_mask",
        options=Options(passed(f"{QUERIES} {KEYS}")),
    )
    def __init__(
        self,
        float_workspace_buffer: Any,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        jit_args: Any = None,
        jit_kwargs: Any = None,
        **buffers: Any,
    ) -> None:
        """A wrapper for one layout; see `BatchPrefillWithPagedKVCacheWrapper`.

        Args:
          qo_indptr_buf, kv_indptr_buf: [batch + 1] i32.
          others: see there.

        Raises:
          SpecError: an argument is wrong.
        """
        self._has_sinks = declares_sinks(jit_args, jit_kwargs)
        names = (QUERIES, KEYS)
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, names, buffers)
        self._keys = self._longest_k = 0
        self._rope: tuple[Any, Any] = (None, None)

    @with_arguments(
        "self qo_indptr kv_indptr num_qo_heads num_kv_heads head_dim_qk head_dim_vo custom_mask "
        "packed_custom_mask causal pos_encoding_mode use_fp16_qk_reduction window_left "
        f"logits_soft_cap sm_scale {ROTATION} q_data_type kv_data_type o_data_type non_blocking "
        "prefix_len_ptr token_pos_in_items_ptr token_pos_in_items_len max_item_len_ptr "
        "fixed_split_size disable_split_kv seq_lens seq_lens_q max_token_per_sequence "
        "max_sequence_kv v_indptr o_indptr uniform_q_len",
        options=RAGGED_PLAN,
    )
    def plan(self, qo_indptr: Any, kv_indptr: Any, **options: Any) -> None:
        """Plans the following calls of `run`. Reads the index tensors back.

        Args:
          qo_indptr, kv_indptr: [batch + 1] i32, where queries and keys of a sequence begin.
          fixed_split_size: keys of a part, a multiple of 128: keys have no pages here.
          pos_encoding_mode: ROPE_LLAMA as well: `run` rotates copies of q and k, by positions over
            `rope_scale` and angles to the base `rope_theta`; not with `use_cuda_graph`.
          others: see `BatchPrefillWithPagedKVCacheWrapper.plan`.

        Raises:
          SpecError: an argument is wrong or has no kernel.
        """
        keys = indices(kv_indptr, "kv_indptr")
        sk = lengths_of("kv_indptr", keys)
        self._buffers.check(KEYS, keys, whole=True)
        longest = int(keys[-1]) if self._use_cuda_graph else max(sk, default=0)
        rope = (options.pop("rope_scale", None), options.pop("rope_theta", None))
        problem = self._plan_queries(qo_indptr, sk, options, rotates=not self._use_cuda_graph)
        if problem.split_size is not None:
            longest = min(longest, MAX_SPLITS * problem.split_size)
        self._buffers.store(KEYS, keys)
        self._keys, self._longest_k, self._rope = int(keys[-1]), longest, rope

    def _rotated(self, problem: Problem, q: Any, k: Any) -> tuple[Any, Any]:
        """q and k as the kernel gets them."""
        if problem.positions != ROTATED:
            return q, k
        queries, keys = (self._buffers.current[name] for name in (QUERIES, KEYS))
        counts = keys.diff()
        q = rotated(q, positions_in(queries, counts), *self._rope)
        return q, rotated(k, positions_in(keys, counts), *self._rope)

    @with_arguments("self q k v sinks sm_scale", f"o_scale {OF_RUN}", options=RAGGED_RUN)
    def run(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        """Attention of the queries to the keys.

        Args:
          q: [qo_indptr[-1], num_qo_heads, head_dim_qk].
          k, v: [kv_indptr[-1], num_kv_heads, head_dim] (NHD) or [num_kv_heads, kv_indptr[-1],
            head_dim] (HND).
          sinks, sm_scale: as of `BatchPrefillWithPagedKVCacheWrapper.run`.
          others: see `BatchDecodeWithPagedKVCacheWrapper.run`.

        Returns:
          As of `BatchPrefillWithPagedKVCacheWrapper.run`.

        Raises:
          SpecError: `plan` was not called, or for other sizes; or an argument is wrong.
        """
        problem = self._with_variant(self._planned(q), options)
        k, v = by_position(k, "k", self._kv_layout), by_position(v, "v", self._kv_layout)
        problem.check_keys("k", k, k.shape[1])
        if k.shape[0] != self._keys:
            raise SpecError(
                f"k has {k.shape[0]} rows, plan was told {self._keys}: call plan with these sizes"
            )
        lengths = {"cu_seqlens_k": self._buffers.current[KEYS], "max_seqlen_k": self._longest_k}
        lengths |= self._queries()
        q, k = self._rotated(problem, q, k)
        return problem.attend(q, k, v, problem.scales(q, options), options, **lengths)

    @with_arguments(
        "self q k v causal pos_encoding_mode use_fp16_qk_reduction window_left logits_soft_cap "
        f"sm_scale {ROTATION}",
        options=RAGGED_FORWARD,
    )
    def forward(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        """As `BatchPrefillWithPagedKVCacheWrapper.forward`."""
        rope = (options.pop("rope_scale", None), options.pop("rope_theta", None))
        options = self._score(q, options)
        self._rope = rope
        return self.run(q, k, v, **options)

    begin_forward = plan
    run_return_lse = functools.partialmethod(run, return_lse=True)
    forward_return_lse = functools.partialmethod(forward, return_lse=True)
