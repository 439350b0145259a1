"""FlashInfer's wrapper for ragged queries and a paged cache; the base of both prefill wrappers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from attn_mlir import env
from attn_mlir.adapters import Options, passed
from attn_mlir.errors import SpecError, shown
from attn_mlir.flashinfer.custom_masks import mask_mod_of
from attn_mlir.flashinfer.options import indices
from attn_mlir.flashinfer.pages import Pages
from attn_mlir.flashinfer.planned import Problem, checked_scale
from attn_mlir.flashinfer.table import (
    OF_PAGED_RUN,
    PAGED_FORWARD,
    PAGED_RUN,
    PREFILL_PLAN,
    ROTATION,
    scores_of,
    with_arguments,
)
from attn_mlir.flashinfer.variants import declares_sinks
from attn_mlir.flashinfer.wrapper import Wrapper, lengths_of
from attn_mlir.runtime.call.scalars import as_int

ROWS = ("paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
BUFFERS = ("paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")
QUERIES = "qo_indptr_buf"


class PrefillWrapper(Wrapper):
    """Base of the wrappers for queries of unequal numbers, one sequence behind the other."""

    _has_sinks = False

    def _with_variant(self, problem: Problem, options: Mapping[str, Any]) -> Problem:
        """The problem of a call, which has a scale of its own where `jit_args` declare a sink.

        Raises:
          SpecError: `sinks` or `sm_scale` are missing with such, or `sm_scale` is there without.
        """
        sinks, sm_scale = options.get("sinks"), options.get("sm_scale")
        if self._has_sinks:
            if sinks is None or sm_scale is None:
                missing = "sinks" if sinks is None else "sm_scale"
                raise SpecError(f"{missing} must be given: jit_args declare an attention sink")
            return dataclasses.replace(problem, scale=checked_scale(sm_scale))
        if sm_scale is not None:
            raise SpecError("sm_scale is an argument of plan; run takes it with jit_args alone")
        return problem

    def _plan_queries(
        self,
        qo_indptr: Any,
        sk: Sequence[int],
        options: Mapping[str, Any],
        page: int = 1,
        *,
        rotates: bool = False,
    ) -> Problem:
        """Plans the queries of both wrappers.

        Args:
          sk: keys of each sequence.
          options: the options of the call by name, those of `PREFILL_PLAN`.
          page: positions of a page.
          rotates: see `Problem`.
        """
        plan_options = PREFILL_PLAN.ours(options)
        masks = (plan_options["custom_mask"], plan_options["packed_custom_mask"])
        offsets = indices(qo_indptr, "qo_indptr")
        sq = lengths_of("qo_indptr", offsets)
        if len(sq) != len(sk):
            raise SpecError(f"qo_indptr has {len(sq)} sequences, those of keys are {len(sk)}")
        if self._use_cuda_graph and any(mask is not None for mask in masks):
            raise SpecError(
                "custom_mask must be None with use_cuda_graph: a graph keeps the first one"
            )
        device, tokens = self._buffers.device, int(offsets[-1])
        uniform = self._uniform(plan_options["uniform_q_len"], sq)
        frozen = {"qo_indptr[-1]": tokens, "uniform_q_len": uniform}
        self._check_frozen(frozen)
        # a graph's grid is made for the longest sequence that it may see
        longest = uniform or tokens if self._use_cuda_graph else max(sq, default=0)
        mask_mod = mask_mod_of(*masks, device, sq, sk)
        problem = Problem.of(
            (
                plan_options["num_qo_heads"],
                plan_options["num_kv_heads"],
                plan_options["head_dim_qk"],
                plan_options["head_dim_vo"],
            ),
            (
                plan_options["q_data_type"],
                plan_options["kv_data_type"],
                plan_options["o_data_type"],
            ),
            mask_mod=mask_mod,
            rotates=rotates,
            **scores_of(plan_options),
        ).with_splits(
            device,
            {"batch": len(sq), "sq": max(sq, default=0), "sk": max(sk, default=0)},
            fixed_split_size=plan_options["fixed_split_size"],
            disable_split_kv=plan_options["disable_split_kv"],
            page_size=page,
        )
        self._check_declared(problem)
        self._buffers.check(QUERIES, offsets, whole=True)
        self._buffers.store(QUERIES, offsets)
        self._longest = longest
        self._store_plan(problem, tokens, frozen)
        return problem

    def _check_declared(self, problem: Problem) -> None:
        """Refuses a problem that contradicts the constructor's arguments, if it has any.

        Raises:
          SpecError: names the argument.
        """

    def _uniform(self, uniform_q_len: object, sq: Sequence[int]) -> int:
        """The number of queries that each sequence of a graph has; 0 where they may differ.

        Raises:
          SpecError: no number.
        """
        hint = 0 if uniform_q_len is None else as_int(uniform_q_len)
        if hint is None:
            raise SpecError(f"uniform_q_len must be an integer, got {shown(uniform_q_len, 40)}")
        if not self._use_cuda_graph or hint <= 0:
            return 0
        if any(length != hint for length in sq):
            env.log_once(
                "info", f"uniform_q_len={hint} is not followed: sequences have other numbers"
            )
            return 0
        return hint

    def _queries(self) -> dict[str, Any]:
        return {"cu_seqlens_q": self._buffers.current[QUERIES], "max_seqlen_q": self._longest}


class BatchPrefillWithPagedKVCacheWrapper(PrefillWrapper):
    """As `flashinfer.BatchPrefillWithPagedKVCacheWrapper`: `plan` once per step, `run` once per
    layer.
    """

    @with_arguments(
        "self float_workspace_buffer kv_layout use_cuda_graph qo_indptr_buf paged_kv_indptr_buf "
        "paged_kv_indices_buf paged_kv_last_page_len_buf custom_mask_buf mask_indptr_buf backend "
        "jit_args jit_kwargs variant_owns_mask",
        options=Options(passed(f"{QUERIES} {' '.join(BUFFERS)}")),
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
        """A wrapper for one layout; see `BatchDecodeWithPagedKVCacheWrapper`.

        Args:
          float_workspace_buffer, kv_layout, use_cuda_graph: see there.
          qo_indptr_buf, paged_kv_indptr_buf: [batch + 1] i32; paged_kv_last_page_len_buf: [batch].
          paged_kv_indices_buf: [entries], room for all pages.
          jit_args, jit_kwargs: see `declares_sinks`; `run` then takes `sinks` and `sm_scale`.

        Raises:
          SpecError: an argument is wrong.
        """
        self._has_sinks = declares_sinks(jit_args, jit_kwargs)
        names = (QUERIES, *BUFFERS)
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, names, buffers)
        self._pages = Pages(ROWS, BUFFERS, self._buffers, self._kv_layout)

    @with_arguments(
        "self qo_indptr paged_kv_indptr paged_kv_indices paged_kv_last_page_len num_qo_heads "
        "num_kv_heads head_dim_qk page_size head_dim_vo custom_mask packed_custom_mask causal "
        f"pos_encoding_mode use_fp16_qk_reduction sm_scale window_left logits_soft_cap {ROTATION} "
        "q_data_type kv_data_type o_data_type non_blocking prefix_len_ptr token_pos_in_items_ptr "
        "token_pos_in_items_len max_item_len_ptr seq_lens seq_lens_q block_tables "
        "max_token_per_sequence max_sequence_kv fixed_split_size disable_split_kv uniform_q_len",
        options=PREFILL_PLAN,
    )
    def plan(
        self,
        qo_indptr: Any,
        paged_kv_indptr: Any,
        paged_kv_indices: Any,
        paged_kv_last_page_len: Any,
        page_size: int,
        **options: Any,
    ) -> None:
        """Plans the following calls of `run`. Reads the index tensors back.

        Args:
          qo_indptr: [batch + 1] i32, sequence b has the queries from qo_indptr[b] to before
            qo_indptr[b + 1].
          paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size: as of
            `BatchDecodeWithPagedKVCacheWrapper.plan`.
          num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo: of q, the cache and O.
          custom_mask: [scores] bool, in the place of `causal`: of each sequence, row by row, which
            keys a query sees; packed_custom_mask: [bytes] u8, the same in bits.
          causal: the last query sees the last key.
          uniform_q_len: queries that each sequence has in all plans of a wrapper for graphs, whose
            launches are then no larger; without graphs it says nothing. Where the first plan has
            another number, the log says that it is not followed.
          sm_scale, window_left, logits_soft_cap, q_data_type, kv_data_type, o_data_type,
            fixed_split_size, disable_split_kv: see there.

        Raises:
          SpecError: an argument is wrong or has no kernel.
        """
        lists = self._pages.checked(
            page_size, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        )
        problem = self._plan_queries(qo_indptr, lists.lengths, options, lists.page_size)
        self._pages.store(lists, problem.split_size)

    @with_arguments(
        "self q paged_kv_cache sinks sm_scale",
        f"{OF_PAGED_RUN} use_fp16_softmax uses_spcompress",
        options=PAGED_RUN,
    )
    def run(self, q: Any, paged_kv_cache: Any, **options: Any) -> Any:
        """Attention of the queries to the cache.

        Args:
          q: [qo_indptr[-1], num_qo_heads, head_dim_qk].
          paged_kv_cache, q_scale, k_scale, v_scale, out, lse, return_lse, window_left, sinks: see
            `BatchDecodeWithPagedKVCacheWrapper.run`.
          lse_base: log2 or ln; lse_layout: NH for [qo_indptr[-1], num_qo_heads], or HN for
            [num_qo_heads, qo_indptr[-1]].
          sm_scale: with `jit_args`, in the place of that of `plan`.

        Returns:
          O [qo_indptr[-1], num_qo_heads, head_dim_vo], with `return_lse` also LSE.

        Raises:
          SpecError: `plan` was not called, or for other sizes; or an argument is wrong.
        """
        problem = self._planned(q).within(options.get("window_left"))
        problem = self._with_variant(problem, options)
        scales = problem.scales(q, options)
        cache = self._pages.cache(problem, paged_kv_cache, scales)
        return problem.attend(q, cache, None, scales, options, **self._queries())

    @with_arguments(
        "self q paged_kv_cache causal pos_encoding_mode use_fp16_qk_reduction k_scale v_scale "
        f"window_left logits_soft_cap sm_scale {ROTATION}",
        options=PAGED_FORWARD,
    )
    def forward(self, q: Any, paged_kv_cache: Any, **options: Any) -> Any:
        """`run` with other scores, which replace those of `plan` from then on.

        Args:
          causal: counts where `plan` was told no mask of the caller's.
          others: see `plan` and `run`.
        """
        return self.run(q, paged_kv_cache, **self._score(q, options))

    begin_forward = plan
    run_return_lse = functools.partialmethod(run, return_lse=True)
    forward_return_lse = functools.partialmethod(forward, return_lse=True)
