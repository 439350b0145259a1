"""FlashInfer's wrapper for decoding: few queries of each sequence, and a paged cache."""

from __future__ import annotations

import functools
from typing import Any

from attn_mlir.adapters import Options, passed
from attn_mlir.flashinfer.pages import Pages
from attn_mlir.flashinfer.planned import Problem
from attn_mlir.flashinfer.table import (
    DECODE_FORWARD,
    DECODE_RUN,
    NO_LIMIT,
    OF_PAGED_RUN,
    ROTATION,
    SCORES,
    with_arguments,
)
from attn_mlir.flashinfer.wrapper import Wrapper, check_as_planned
from attn_mlir.runtime.call.scalars import flag, integer

ROWS = ("indptr", "indices", "last_page_len")
BUFFERS = (
    "paged_kv_indptr_buffer",
    "paged_kv_indices_buffer",
    "paged_kv_last_page_len_buffer",
)


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    """As `flashinfer.BatchDecodeWithPagedKVCacheWrapper`: `plan` once per step, `run` once per
    layer.
    """

    @with_arguments(
        "self float_workspace_buffer kv_layout use_cuda_graph use_tensor_cores "
        "paged_kv_indptr_buffer "
        "paged_kv_indices_buffer paged_kv_last_page_len_buffer backend jit_args",
        options=Options(passed(" ".join(BUFFERS))),
    )
    def __init__(
        self,
        float_workspace_buffer: Any,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        **buffers: Any,
    ) -> None:
        """A wrapper for one layout.

        Args:
          float_workspace_buffer: says on which device calls are; nothing is written to it.
          kv_layout: NHD or HND.
          use_cuda_graph: calls are captured: their index tensors are copied into the buffers, and
            the batch stays what it is.
          use_tensor_cores: says nothing; the property of this name is what it was.
          paged_kv_indptr_buffer: [batch + 1] i32; paged_kv_last_page_len_buffer: [batch].
          paged_kv_indices_buffer: [entries], room for all pages.

        Raises:
          SpecError: an argument is wrong.
        """
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, BUFFERS, buffers)
        self._pages = Pages(ROWS, BUFFERS, self._buffers, self._kv_layout)
        self._use_tensor_cores = flag("use_tensor_cores", use_tensor_cores)
        self._rows = 0

    @property
    def use_tensor_cores(self) -> bool:
        """The arguments that the wrapper was made with."""
        return self._use_tensor_cores

    @with_arguments(
        "self indptr indices last_page_len num_qo_heads num_kv_heads head_dim page_size "
        "pos_encoding_mode window_left logits_soft_cap q_data_type kv_data_type o_data_type "
        f"data_type sm_scale {ROTATION} non_blocking block_tables seq_lens fixed_split_size "
        "disable_split_kv q_len_per_req",
        options=SCORES,
    )
    def plan(
        self,
        indptr: Any,
        indices: Any,
        last_page_len: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        q_data_type: object = "float16",
        kv_data_type: object = None,
        o_data_type: object = None,
        data_type: object = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        q_len_per_req: int = 1,
        *,
        window_right: int = 0,
        is_causal: bool | None = None,
        **scores: Any,
    ) -> None:
        """Plans the following calls of `run`. Reads the index tensors back.

        Args:
          indptr: [batch + 1] i32, sequence b has the pages indices[indptr[b]:indptr[b + 1]].
          indices: [entries] i32; last_page_len: [batch] i32, positions in the last page of each.
          num_qo_heads, num_kv_heads, head_dim, page_size: of q and of the cache.
          window_left: a query sees so many keys to its left; -1: all. window_right: to its right.
          logits_soft_cap: scores become cap * tanh(score / cap); None, 0 or less: they stay as
            they are.
          q_data_type, kv_data_type, o_data_type: of q, the cache and O; data_type is that of q and
            of the cache where these are None.
          sm_scale: of the scores; 1 / sqrt(head_dim) when left out.
          fixed_split_size: pages of a part of the keys, whole multiples of 128 keys: results then
            have the same bits whatever else is in the batch; see `attention`'s split_size. None or
            -1: the number of parts goes by the sizes.
          disable_split_kv: keys are not divided among CTAs, whatever `fixed_split_size` says.
          q_len_per_req: queries of each sequence; is_causal: whether they are causally aligned at
            the last key; None: they are.

        Raises:
          SpecError: an argument is wrong or has no kernel.
        """
        lists = self._pages.checked(page_size, indptr, indices, last_page_len)
        rows = integer("q_len_per_req", q_len_per_req, 1)
        is_aligned = rows > 1 if is_causal is None else flag("is_causal", is_causal)
        frozen = {"q_len_per_req": rows}
        self._check_frozen(frozen)
        problem = Problem.of(
            (num_qo_heads, num_kv_heads, head_dim, None),
            (
                data_type if q_data_type is None else q_data_type,
                data_type if kv_data_type is None else kv_data_type,
                o_data_type,
            ),
            window_right=window_right if is_aligned else NO_LIMIT,
            **scores,
        ).with_splits(
            self._buffers.device,
            {"batch": len(lists.lengths), "sq": rows, "sk": max(lists.lengths, default=0)},
            fixed_split_size=fixed_split_size,
            disable_split_kv=disable_split_kv,
            page_size=lists.page_size,
        )
        self._pages.store(lists, problem.split_size)
        self._store_plan(problem, rows * len(lists.lengths), frozen)
        self._rows = rows

    @with_arguments("self q paged_kv_cache", OF_PAGED_RUN, options=DECODE_RUN)
    def run(self, q: Any, paged_kv_cache: Any, **options: Any) -> Any:
        """Attention of the next tokens to the cache.

        Args:
          q: [batch * q_len_per_req, num_qo_heads, head_dim].
          paged_kv_cache: [pages, 2, page, num_kv_heads, head_dim] (NHD) or [pages, 2, num_kv_heads,
            page, head_dim] (HND), or a pair of tensors without the 2.
          q_scale, k_scale, v_scale: scales; numbers, or for 8-bit operands tensors as of
            `attention`.
          out: memory for O; lse: for LSE, f32.
          sinks: [num_qo_heads], see `attention`; they count in LSE here.
          window_left: counts in the place of what `plan` was told; None: that counts.
          q_len_per_req: None, or as `plan` was told.

        Returns:
          O like q, with `return_lse` also LSE, [batch * q_len_per_req, num_qo_heads] in base 2.

        Raises:
          SpecError: `plan` was not called, or for other sizes; or an argument is wrong.
        """
        problem = self._planned(q).within(options.get("window_left"))
        check_as_planned("q_len_per_req", options.get("q_len_per_req"), self._rows)
        scales = problem.scales(q, options)
        cache = self._pages.cache(problem, paged_kv_cache, scales)
        return problem.attend(q, cache, None, scales, options, rows=self._rows)

    @with_arguments(
        "self q paged_kv_cache pos_encoding_mode q_scale k_scale v_scale window_left "
        f"logits_soft_cap sm_scale {ROTATION}",
        options=DECODE_FORWARD,
    )
    def forward(self, q: Any, paged_kv_cache: Any, **options: Any) -> Any:
        """`run` with other scores, which replace those of `plan` from then on.

        Args:
          others: see `plan` and `run`.
        """
        return self.run(q, paged_kv_cache, **self._score(q, options))

    begin_forward = plan
    run_return_lse = functools.partialmethod(run, return_lse=True)
    forward_return_lse = functools.partialmethod(forward, return_lse=True)
