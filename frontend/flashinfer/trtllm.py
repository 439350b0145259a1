"""FlashInfer's functions that take a page table and lengths in one call, without a plan."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from attn_mlir.adapters import check_neutral
from attn_mlir.caches import PagedKV
from attn_mlir.errors import SpecError, shown
from attn_mlir.flashinfer.options import checked_layout, tensor
from attn_mlir.flashinfer.planned import Problem
from attn_mlir.flashinfer.table import NEUTRAL, NO_LIMIT, TRTLLM, with_arguments
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import flag, integer

torch: Any = importlib.import_module("torch")

POOL_RANK, POOLS = 4, (1, 2)


@with_arguments(
    "query kv_cache workspace_buffer block_tables seq_lens max_seq_len bmm1_scale bmm2_scale "
    "window_left out out_dtype o_sf_scale o_sf_vec_size sinks kv_layout enable_pdl backend "
    "q_len_per_req o_scale mask max_q_len cum_seq_lens_q skip_softmax_threshold_scale_factor "
    "kv_cache_sf uses_shared_paged_kv_idx lse return_lse bmm1_scale_log2 "
    "multi_ctas_kv_counter_buffer enable_block_sparse_attention cp_world cp_rank "
    "causal_seqlens_kv_global bf16q_fp8kv_transform_mode request_order request_order_plan",
    options=TRTLLM,
)
def trtllm_batch_decode_with_kv_cache(
    query: Any,
    kv_cache: Any,
    workspace_buffer: Any,
    block_tables: Any,
    seq_lens: Any,
    max_seq_len: int,
    bmm1_scale: Any = 1.0,
    bmm2_scale: Any = 1.0,
    q_len_per_req: int | None = 1,
    max_q_len: int | None = None,
    cum_seq_lens_q: Any = None,
    **options: Any,
) -> Any:
    """As `flashinfer.trtllm_batch_decode_with_kv_cache`: new tokens and a paged cache.

    Args:
      query: [tokens, num_qo_heads, head_dim]; the queries of a sequence are its last positions.
      kv_cache: [pages, 2, num_kv_heads, page, head_dim] (HND) or [pages, 2, page, num_kv_heads,
        head_dim] (NHD), [pages, 1, ...] where values are the keys, or a pair without this axis.
      workspace_buffer, max_seq_len: not looked at.
      block_tables: [batch, columns] i32, or [batch, 2, columns] with pages of K and of V.
      seq_lens: [batch] i32 or u32, positions of each sequence, the new ones counted.
      bmm1_scale: of the scores; bmm2_scale: of O. Numbers, or for caches of 8 bits tensors f32 of
        one element.
      window_left: keys to its left that a query sees; -1: all.
      out, out_dtype: memory for O, and its dtype.
      sinks: [num_qo_heads], or a list of one such; they count in LSE.
      kv_layout: HND or NHD.
      q_len_per_req: queries of each sequence, where `cum_seq_lens_q` is None.
      cum_seq_lens_q: [batch + 1] i32, where queries of a sequence begin; max_q_len: no sequence has
        more.
      lse: [tokens, num_qo_heads] f32, memory for LSE; return_lse: whether it is returned.

    Returns:
      O like query, with `return_lse` also LSE, [tokens, num_qo_heads] in base 2.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    del workspace_buffer, max_seq_len
    if (cum_seq_lens_q is None) != (max_q_len is None):
        raise SpecError("cum_seq_lens_q and max_q_len must be given together")
    lengths: dict[str, Any] = {"rows": 1 if q_len_per_req is None else q_len_per_req}
    if cum_seq_lens_q is not None:
        longest = integer("max_q_len", max_q_len, 0)
        lengths = {"cu_seqlens_q": cum_seq_lens_q, "max_seqlen_q": longest}
    scales = (bmm1_scale, bmm2_scale)
    return _ATTEND(query, kv_cache, block_tables, seq_lens, scales, lengths, options)


@with_arguments(
    "query kv_cache workspace_buffer block_tables seq_lens max_q_len max_kv_len bmm1_scale "
    "bmm2_scale batch_size cum_seq_lens_q cum_seq_lens_kv window_left out out_dtype o_sf_scale "
    "o_sf_vec_size kv_layout enable_pdl sinks kv_cache_sf skip_softmax_threshold_scale_factor "
    "uses_shared_paged_kv_idx causal lse return_lse multi_ctas_kv_counter_buffer "
    "use_fp16_softmax uses_spcompress backend",
    options=TRTLLM,
)
def trtllm_batch_context_with_kv_cache(
    query: Any,
    kv_cache: Any,
    workspace_buffer: Any,
    block_tables: Any,
    seq_lens: Any,
    max_q_len: int,
    max_kv_len: int,
    bmm1_scale: Any,
    bmm2_scale: Any,
    batch_size: int,
    cum_seq_lens_q: Any,
    cum_seq_lens_kv: Any,
    causal: bool = True,
    backend: object = "trtllm-gen",
    **options: Any,
) -> Any:
    """As `flashinfer.trtllm_batch_context_with_kv_cache`: prefill over a paged cache.

    Args:
      batch_size: sequences; max_q_len: no sequence has more queries.
      workspace_buffer, max_kv_len, cum_seq_lens_kv: not looked at; `seq_lens` has lengths.
      causal: the last query sees the last key, and each one before it a key less.
      others: see `trtllm_batch_decode_with_kv_cache`.

    Returns:
      As there.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    del workspace_buffer, max_kv_len, cum_seq_lens_kv
    check_neutral("backend", backend, NEUTRAL["backend"])
    sequences = tensor(cum_seq_lens_q, "cum_seq_lens_q", 1).shape[0] - 1
    if integer("batch_size", batch_size, 0) != sequences:
        raise SpecError(f"batch_size is {batch_size}, cum_seq_lens_q has {sequences} sequences")
    longest = integer("max_q_len", max_q_len, 0)
    lengths = {"cu_seqlens_q": cum_seq_lens_q, "max_seqlen_q": longest}
    scales = (bmm1_scale, bmm2_scale)
    return _ATTEND(query, kv_cache, block_tables, seq_lens, scales, lengths, options, causal=causal)


def _attend(
    query: Any,
    kv_cache: Any,
    block_tables: Any,
    seq_lens: Any,
    scales: tuple[Any, Any],
    lengths: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    causal: object = True,
) -> Any:
    """The call of both functions.

    Args:
      scales: of the scores and of O.
      lengths: `rows`, queries of each sequence, or `cu_seqlens_q` and `max_seqlen_q`.
      options: those of `TRTLLM`.
    """
    layout = checked_layout(options.get("kv_layout", "HND"))
    k, v = _pools(kv_cache)
    inner = k.shape[1:3]
    kv_heads = inner[1] if layout == "NHD" else inner[0]
    tensor(query, "query", 3)
    if (rows := lengths.get("rows")) is not None:
        queries = integer("q_len_per_req", rows, 1)
        batch = tensor(seq_lens, "seq_lens", 1).shape[0]
        if query.shape[0] != queries * batch:
            raise SpecError(
                f"query has {query.shape[0]} rows: {batch} sequences of {queries} queries have "
                f"{queries * batch}"
            )
    out = options.get("out")
    out_dtype = options.get("out_dtype")
    if out_dtype is None and out is not None:
        out_dtype = tensor(out, "out", 3).dtype
    in_kernel = isinstance(scales[0], torch.Tensor)
    problem = Problem.of(
        (query.shape[1], kv_heads, query.shape[2], v.shape[-1]),
        (query.dtype, k.dtype, out_dtype),
        called=("query", "kv_cache", "out_dtype"),
        causal=causal,
        window_left=options.get("window_left", NO_LIMIT),
        sm_scale=1.0 if in_kernel else scales[0],
    )
    factors = {"k_scale": scales[0] if in_kernel else None, "v_scale": scales[1]}
    tables = problem.scales(query, factors)
    shared = flag("uses_shared_paged_kv_idx", options.get("uses_shared_paged_kv_idx", True))
    table = tensor(block_tables, "block_tables", 2 if shared else 3)
    cache = PagedKV(k, v, table, seq_lens, layout=layout, k_scale=tables.k, v_scale=tables.v)
    results = {name: options.get(name) for name in ("out", "lse")}
    results["return_lse"] = flag("return_lse", options.get("return_lse", False))
    wants_lse = results["return_lse"] or results["lse"] is not None
    found = problem.attend(
        query,
        cache,
        None,
        tables,
        {**results, "return_lse": wants_lse, "sinks": one_sink(options.get("sinks"))},
        **lengths,
    )
    return found[0] if wants_lse and not results["return_lse"] else found


_ATTEND = renamed(
    _attend,
    q="query",
    sm_scale="bmm1_scale",
    k_scale="bmm1_scale",
    v_scale="bmm2_scale",
    page_table="block_tables",
    seqused="seq_lens",
    k_pages="kv_cache",
    v_pages="kv_cache",
    cu_seqlens_q="cum_seq_lens_q",
    max_seqlen_q="max_q_len",
)


def _pools(kv_cache: Any) -> tuple[Any, Any]:
    """Pools of K and V.

    Raises:
      SpecError: another number of them.
    """
    if isinstance(kv_cache, tuple | list):
        pools = cast("Sequence[Any]", kv_cache)
        if len(pools) != POOLS[1]:
            raise SpecError(f"kv_cache must be a tensor or a pair of them, got {len(pools)}")
        k, v = (tensor(pool, "kv_cache", POOL_RANK) for pool in pools)
        return k, v
    both = tensor(kv_cache, "kv_cache", POOL_RANK + 1)
    if both.shape[1] not in POOLS:
        raise SpecError(f"kv_cache must be [pages, 1 or 2, ...], got {list(both.shape)}")
    return both[:, 0], both[:, -1]


def one_sink(sinks: Any) -> Any:
    """Sinks as a tensor.

    Raises:
      SpecError: a list of several.
    """
    if not isinstance(sinks, tuple | list):
        return sinks
    entries = cast("Sequence[Any]", sinks)
    if len(entries) != 1:
        raise SpecError(f"sinks must be a tensor or a list of one, got {shown(entries, 40)}")
    return entries[0]
