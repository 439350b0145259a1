"""FlashInfer's wrapper for queries of unequal numbers and a paged cache, and what it shares with that for ragged keys."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from attn_mlir.errors import SpecError
from attn_mlir.flashinfer.custom_masks import mask_mod_of
from attn_mlir.flashinfer.decode import check_as_planned
from attn_mlir.flashinfer.options import (
    NO_LIMIT,
    checked_layout,
    indices,
    mask_of,
    number,
    operand_dtype,
    output_dtype,
    refuse_arguments,
    refuse_meaningful,
)
from attn_mlir.flashinfer.pages import Buffers, cache_of, check_rows, compressed
from attn_mlir.flashinfer.planned import Problem
from attn_mlir.runtime.scalars import flag, integer

ROWS = ("paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
BUFFERS = ("paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")
QUERIES = "qo_indptr_buf"


class PrefillWrapper:
    """What both wrappers keep between `plan` and `run`."""

    def __init__(
        self,
        workspace: Any,
        kv_layout: str,
        use_cuda_graph: bool,
        buffers: dict[str, Any],
        neutral: dict[str, Any],
    ) -> None:
        refuse_meaningful(**neutral)
        self._layout = checked_layout(kv_layout)
        self._captured = flag("use_cuda_graph", use_cuda_graph)
        self._buffers = Buffers.of(workspace, self._captured, buffers)
        self._problem: Problem | None = None
        self._tokens = self._longest = 0

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """Whether calls are captured."""
        return self._captured

    def reset_workspace_buffer(
        self, float_workspace_buffer: Any, int_workspace_buffer: Any
    ) -> None:
        """Does nothing: there are no workspaces."""

    def end_forward(self) -> None:
        """Does nothing, as there."""

    def _plan(
        self,
        qo_indptr: Any,
        sk: Sequence[int],
        sizes: tuple[int, int, int, int | None],
        dtypes: tuple[object, object, object],
        scores: dict[str, Any],
        masks: tuple[Any, Any],
        *,
        unsplit: object,
        neutral: dict[str, Any],
    ) -> None:
        """What both plans have in common.

        Args:
          sk: keys of each sequence.
          sizes: heads of q and of k, head_dim and v_head_dim.
          dtypes: of q, of k and v, and of O.
          scores: causal, window_left, cap and scale.
          masks: custom_mask and packed_custom_mask.
          neutral: what asks for nothing.
        """
        refuse_meaningful(**neutral)
        heads, kv_heads, head_dim, v_head_dim = sizes
        offsets = indices(qo_indptr, "qo_indptr")
        sq = lengths_of("qo_indptr", offsets)
        if len(sq) != len(sk):
            raise SpecError(f"qo_indptr has {len(sq)} sequences, those of keys are {len(sk)}")
        dtype = operand_dtype(dtypes[0], "q_data_type")
        has_mask = any(mask is not None for mask in masks)
        if has_mask and self._captured:
            raise SpecError(
                "custom_mask must be None with use_cuda_graph: a graph keeps the first one"
            )
        problem = Problem(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            v_head_dim=head_dim if v_head_dim is None else v_head_dim,
            dtype=dtype,
            kv_dtype=operand_dtype(dtypes[1], "kv_data_type", dtype),
            out_dtype=output_dtype(dtypes[2]),
            mask=mask_of(False if has_mask else scores["causal"], scores["window_left"]),
            window_left=scores["window_left"],
            cap=number("logits_soft_cap", scores["cap"], 0.0),
            scale=scores["scale"],
            mask_mod=mask_mod_of(*masks, self._buffers.device, sq, sk),
        )
        tokens = int(offsets[-1])
        if self._captured and self._tokens not in (0, tokens):
            raise SpecError(
                f"qo_indptr ends at {tokens}, that of a wrapper for graphs stays {self._tokens}"
            )
        longest = max(sq, default=0)
        is_unsplit = flag("disable_split_kv", unsplit)
        problem = problem.with_parts(
            self._buffers.device, len(sq), longest, max(sk, default=0), unsplit=is_unsplit
        )
        self._buffers.keep(QUERIES, offsets, whole=True)
        # a graph's grid is made for the longest sequence that it may see
        self._longest = tokens if self._captured else longest
        self._problem, self._tokens = problem, tokens

    def _planned(self, q: Any) -> Problem:
        """The problem, which q belongs to."""
        if self._problem is None:
            raise SpecError("plan has not been called: it says what run computes")
        self._problem.check(q)
        if q.shape[0] != self._tokens:
            raise SpecError(
                f"q has {q.shape[0]} rows, plan was told {self._tokens}: call plan with these sizes"
            )
        return self._problem

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
        refuse_mask_buffers(custom_mask_buf, mask_indptr_buf)
        given = (
            qo_indptr_buf,
            paged_kv_indptr_buf,
            paged_kv_indices_buf,
            paged_kv_last_page_len_buf,
        )
        named: dict[str, Any] = dict(zip((QUERIES, *BUFFERS), given, strict=True))
        neutral = {"backend": backend, "jit_args": jit_args, "jit_kwargs": jit_kwargs}
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, named, neutral)
        self._page_size = 0

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
            disable_split_kv, non_blocking: see there.
          others: what asks for nothing.

        Raises:
          SpecError: an argument is wrong or has no kernel.
        """
        page_size = integer("page_size", page_size, 1)
        rows = compressed(ROWS, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        self._plan(
            qo_indptr,
            check_rows(ROWS, *rows, page_size),
            (num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo),
            (q_data_type, kv_data_type, o_data_type),
            {
                "causal": causal,
                "window_left": window_left,
                "cap": logits_soft_cap,
                "scale": sm_scale,
            },
            (custom_mask, packed_custom_mask),
            unsplit=disable_split_kv,
            neutral={
                "pos_encoding_mode": pos_encoding_mode,
                "use_fp16_qk_reduction": use_fp16_qk_reduction,
                "rope_scale": rope_scale,
                "rope_theta": rope_theta,
                "non_blocking": non_blocking,
                "prefix_len_ptr": prefix_len_ptr,
                "token_pos_in_items_ptr": token_pos_in_items_ptr,
                "token_pos_in_items_len": token_pos_in_items_len,
                "max_item_len_ptr": max_item_len_ptr,
                "seq_lens": seq_lens,
                "seq_lens_q": seq_lens_q,
                "block_tables": block_tables,
                "max_token_per_sequence": max_token_per_sequence,
                "max_sequence_kv": max_sequence_kv,
                "fixed_split_size": fixed_split_size,
            },
        )
        for name, value in zip(BUFFERS, rows, strict=True):
            self._buffers.keep(name, value, whole=name != BUFFERS[1])
        self._page_size = page_size

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
        refuse_arguments(args)
        refuse_meaningful(
            enable_pdl=enable_pdl,
            kv_cache_sf=kv_cache_sf,
            skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor,
            use_fp16_softmax=use_fp16_softmax,
            uses_spcompress=uses_spcompress,
        )
        problem = self._planned(q)
        check_as_planned("window_left", window_left, problem.window_left)
        factors = problem.factors(q, q_scale, k_scale, v_scale)
        kept, layout = self._buffers.kept, self._layout
        cache = cache_of(problem, kept, BUFFERS, paged_kv_cache, layout, self._page_size, factors)
        return problem.attend(
            q,
            cache,
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


def refuse_mask_buffers(custom_mask_buf: Any, mask_indptr_buf: Any) -> None:
    """Refuses room for masks of the caller in graphs."""
    for name, value in {
        "custom_mask_buf": custom_mask_buf,
        "mask_indptr_buf": mask_indptr_buf,
    }.items():
        if value is not None:
            raise SpecError(f"{name} must be None: masks of the caller do not go into graphs")


def lengths_of(name: str, offsets: Any) -> list[int]:
    """Lengths of sequences by offsets from 0 on.

    Raises:
      SpecError: they are none.
    """
    numbers = offsets.tolist()
    if not numbers or numbers[0] != 0:
        raise SpecError(f"{name} must begin with 0, got {numbers[:1]}")
    lengths = [y - x for x, y in itertools.pairwise(numbers)]
    for b, length in enumerate(lengths):
        if length < 0:
            raise SpecError(f"{name} must not decrease: sequence {b} has {length}")
    return lengths
