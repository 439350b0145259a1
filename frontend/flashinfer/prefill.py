"""FlashInfer's wrapper for queries of unequal numbers and a paged cache, and what it shares with that for ragged keys."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from attn_mlir.errors import SpecError
from attn_mlir.flashinfer.custom_masks import mask_mod_of
from attn_mlir.flashinfer.options import (
    NO_LIMIT,
    indices,
    refuse_arguments,
    refuse_meaningful,
)
from attn_mlir.flashinfer.pages import Pages
from attn_mlir.flashinfer.planned import Problem
from attn_mlir.flashinfer.wrapper import Wrapper, check_as_planned, lengths_of
from attn_mlir.runtime.scalars import flag

ROWS = ("paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
BUFFERS = ("paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")
QUERIES = "qo_indptr_buf"


class PrefillWrapper(Wrapper):
    """Base of the wrappers for queries of unequal numbers, one sequence behind the other."""

    def _plan_queries(
        self,
        qo_indptr: Any,
        sk: Sequence[int],
        room: int,
        sizes: tuple[int, int, int, int | None],
        dtypes: tuple[object, object, object],
        masks: tuple[Any, Any],
        parts: Mapping[str, Any],
        **scores: Any,
    ) -> Problem:
        """What both plans have in common.

        Args:
          sk: keys of each sequence; room: no sequence has more, see `Told.room`.
          sizes, dtypes, scores: see `Problem.of`.
          masks: custom_mask and packed_custom_mask.
          parts: fixed_split_size, disable_split_kv and page_size.
        """
        offsets = indices(qo_indptr, "qo_indptr")
        sq = lengths_of("qo_indptr", offsets)
        if len(sq) != len(sk):
            raise SpecError(f"qo_indptr has {len(sq)} sequences, those of keys are {len(sk)}")
        if self._captured and any(mask is not None for mask in masks):
            raise SpecError(
                "custom_mask must be None with use_cuda_graph: a graph keeps the first one"
            )
        device, tokens = self._buffers.device, int(offsets[-1])
        frozen = {"qo_indptr[-1]": tokens}
        self._check_frozen(frozen)
        # a graph's grid is made for the longest sequence that it may see
        longest = tokens if self._captured else max(sq, default=0)
        mask_mod = mask_mod_of(*masks, device, sq, sk)
        problem = Problem.of(sizes, dtypes, mask_mod=mask_mod, **scores)
        extents = {"batch": len(sq), "sq": max(sq, default=0), "sk": max(sk, default=0)}
        problem = problem.with_parts(device, extents, room=room, **parts)
        self._buffers.check(QUERIES, offsets, whole=True)
        self._buffers.keep(QUERIES, offsets)
        self._longest = longest
        self._keep(problem, tokens, frozen)
        return problem

    def _queries(self) -> dict[str, Any]:
        return {"cu_seqlens_q": self._buffers.kept[QUERIES], "max_seqlen_q": self._longest}


class BatchPrefillWithPagedKVCacheWrapper(PrefillWrapper):
    """As `flashinfer.BatchPrefillWithPagedKVCacheWrapper`: `plan` once per step, `run` once per layer."""

    def __init__(
        self,
        float_workspace_buffer: Any,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Any = None,
        paged_kv_indptr_buf: Any = None,
        paged_kv_indices_buf: Any = None,
        paged_kv_last_page_len_buf: Any = None,
        custom_mask_buf: None = None,
        mask_indptr_buf: None = None,
        backend: str = "auto",
        jit_args: None = None,
        jit_kwargs: None = None,
    ) -> None:
        """A wrapper for one layout; see `BatchDecodeWithPagedKVCacheWrapper`.

        Args:
          float_workspace_buffer, kv_layout, use_cuda_graph, backend, jit_args, jit_kwargs: see there.
          qo_indptr_buf, paged_kv_indptr_buf: [batch + 1] i32; paged_kv_last_page_len_buf: [batch].
          paged_kv_indices_buf: [entries], room for all pages.
          custom_mask_buf, mask_indptr_buf: None: masks of the caller do not go into graphs.

        Raises:
          SpecError: an argument is wrong.
        """
        refuse_meaningful(locals())
        given = (
            qo_indptr_buf,
            paged_kv_indptr_buf,
            paged_kv_indices_buf,
            paged_kv_last_page_len_buf,
        )
        named: dict[str, Any] = dict(zip((QUERIES, *BUFFERS), given, strict=True))
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, named)
        self._pages = Pages(ROWS, BUFFERS, self._buffers, self._layout)

    def plan(
        self,
        qo_indptr: Any,
        paged_kv_indptr: Any,
        paged_kv_indices: Any,
        paged_kv_last_page_len: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Any = None,
        packed_custom_mask: Any = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = NO_LIMIT,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: object = "float16",
        kv_data_type: object = None,
        o_data_type: object = None,
        non_blocking: bool = True,
        prefix_len_ptr: None = None,
        token_pos_in_items_ptr: None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: None = None,
        seq_lens: None = None,
        seq_lens_q: None = None,
        block_tables: None = None,
        max_token_per_sequence: None = None,
        max_sequence_kv: None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
    ) -> None:
        """What the following calls of `run` have in common. Reads the index tensors back.

        Args:
          qo_indptr: [batch + 1] i32, sequence b has the queries from qo_indptr[b] to before
            qo_indptr[b + 1].
          paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size: as of
            `BatchDecodeWithPagedKVCacheWrapper.plan`.
          num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo: of q, the cache and O.
          custom_mask: [scores] bool, in the place of `causal`: of each sequence, row by row, which
            keys a query sees; packed_custom_mask: [bytes] u8, the same in bits.
          causal: the last query sees the last key.
          sm_scale, window_left, logits_soft_cap, q_data_type, kv_data_type, o_data_type,
            fixed_split_size, disable_split_kv, non_blocking: see there.
          others: what asks for nothing.

        Raises:
          SpecError: an argument is wrong or has no kernel.
        """
        refuse_meaningful(locals())
        told = self._pages.told(
            page_size, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        )
        problem = self._plan_queries(
            qo_indptr,
            told.lengths,
            told.room,
            (num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo),
            (q_data_type, kv_data_type, o_data_type),
            (custom_mask, packed_custom_mask),
            {
                "fixed_split_size": fixed_split_size,
                "disable_split_kv": disable_split_kv,
                "page_size": told.page_size,
            },
            causal=causal,
            window_left=window_left,
            cap=logits_soft_cap,
            scale=sm_scale,
        )
        self._pages.keep(told, bounded=problem.split_size is not None)

    def run(
        self,
        q: Any,
        paged_kv_cache: Any,
        *args: Any,
        q_scale: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        out: Any = None,
        lse: Any = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: Any = None,
        kv_cache_sf: None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        use_fp16_softmax: bool | None = None,
        uses_spcompress: bool | None = None,
    ) -> Any:
        """Attention of the queries to the cache.

        Args:
          q: [qo_indptr[-1], num_qo_heads, head_dim_qk].
          paged_kv_cache, q_scale, k_scale, v_scale, out, lse, return_lse, enable_pdl, window_left,
            sinks: see `BatchDecodeWithPagedKVCacheWrapper.run`.
          others: what asks for nothing.

        Returns:
          O [qo_indptr[-1], num_qo_heads, head_dim_vo], with `return_lse` also LSE, [qo_indptr[-1],
          num_qo_heads] in base 2.

        Raises:
          SpecError: `plan` was not called, or for other sizes; or an argument is wrong.
        """
        refuse_meaningful(locals())
        refuse_arguments(args)
        problem = self._planned(q)
        check_as_planned("window_left", window_left, problem.window_left)
        factors = problem.factors(q, q_scale, k_scale, v_scale)
        return problem.attend(
            q,
            self._pages.cache(problem, paged_kv_cache, factors),
            None,
            factors,
            out=out,
            lse=lse,
            return_lse=flag("return_lse", return_lse),
            sinks=sinks,
            **self._queries(),
        )

    begin_forward = plan
    run_return_lse = functools.partialmethod(run, return_lse=True)
