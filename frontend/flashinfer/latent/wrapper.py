"""FlashInfer's wrapper for latent attention over pages."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from attn_mlir.element_types import NARROW
from attn_mlir.errors import SpecError
from attn_mlir.flashinfer.buffers import Buffers
from attn_mlir.flashinfer.latent.operands import BASES, COLUMNS, LatentCall, one_array
from attn_mlir.flashinfer.options import (
    TORCH_DTYPES,
    indices,
    number,
    operand_dtype,
    output_dtype,
    tensor,
)
from attn_mlir.flashinfer.page_rows import rows_by_lengths
from attn_mlir.flashinfer.positions import positions_in
from attn_mlir.flashinfer.table import LATENT_PLAN, with_arguments
from attn_mlir.flashinfer.wrapper import lengths_of
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import flag, integer

torch: Any = importlib.import_module("torch")

QUERIES, OFFSETS, ENTRIES, LENGTHS = "qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr"
LAST = "last_page_len"
_NAMES = {"scale": "sm_scale", "k_pages": "kv_cache", "q": "query", "k": "kv_cache"}


class BatchMLAPagedAttentionWrapper:
    """As `flashinfer.BatchMLAPagedAttentionWrapper`: `plan` once per step, `run` once per layer."""

    @with_arguments(
        "self float_workspace_buffer use_cuda_graph qo_indptr kv_indptr kv_indices kv_len_arr "
        "backend"
    )
    def __init__(
        self,
        float_workspace_buffer: Any,
        use_cuda_graph: bool = False,
        qo_indptr: Any = None,
        kv_indptr: Any = None,
        kv_indices: Any = None,
        kv_len_arr: Any = None,
    ) -> None:
        """A wrapper.

        Args:
          float_workspace_buffer: says on which device calls are; nothing is written to it.
          use_cuda_graph: calls are captured: their index tensors are copied into the buffers.
          qo_indptr, kv_indptr: [batch + 1] i32; kv_len_arr: [batch] i32.
          kv_indices: [entries] i32, room for all pages.

        Raises:
          SpecError: an argument is wrong.
        """
        is_captured = flag("use_cuda_graph", use_cuda_graph)
        given = {
            QUERIES: qo_indptr, OFFSETS: kv_indptr, ENTRIES: kv_indices, LENGTHS: kv_len_arr,
        }  # fmt: skip
        self._buffers = Buffers.of(float_workspace_buffer, is_captured, given)
        if is_captured:
            memory = torch.zeros_like(kv_len_arr)
            self._buffers.external = {**given, LAST: memory}
        self._queries = self._rows = self._call = None
        self._sizes: tuple[int, int, int] = (0, 0, 0)
        self._dtypes: tuple[Any, Any] = (None, None)

    @with_arguments(
        "self qo_indptr kv_indptr kv_indices kv_len_arr num_heads head_dim_ckv head_dim_kpe "
        "page_size causal sm_scale q_data_type kv_data_type use_profiler",
        "metadata query_layout kv_cache_layout lse_mode scale_mode skip_softmax enable_pdl "
        "output_scale use_sinks",
        options=LATENT_PLAN,
    )
    def plan(
        self,
        qo_indptr: Any = None,
        kv_indptr: Any = None,
        kv_indices: Any = None,
        kv_len_arr: Any = None,
        num_heads: int | None = None,
        head_dim_ckv: int | None = None,
        head_dim_kpe: int | None = None,
        page_size: int | None = None,
        causal: bool | None = None,
        sm_scale: float | None = None,
        q_data_type: object = None,
        kv_data_type: object = None,
        **options: Any,
    ) -> None:
        """Plans the following calls of `run`. Reads the index tensors back.

        Args:
          qo_indptr: [batch + 1] i32, where queries of a sequence begin. Where sequences have
            different numbers, q is copied to as many rows as the longest has; not with
            `use_cuda_graph`.
          kv_indptr: [batch + 1] i32, sequence b has the pages
            kv_indices[kv_indptr[b]:kv_indptr[b + 1]]; kv_len_arr: [batch] i32, its positions.
          cum_seq_lens_q, block_tables, seq_lens: the same as a table [batch, columns], in place of
            these four; max_q_len: no sequence has more queries.
          num_heads: of q; any number, copied where 8 does not divide it.
          head_dim_ckv: 512; head_dim_kpe: 64, or 0.
          page_size: positions of a page.
          causal: whether the queries are the last positions of their sequence.
          sm_scale: of the scores.
          q_data_type, kv_data_type: bf16 or f16, the cache also e4m3, and then q as well.
          output_dtype: q's dtype, bf16 for e4m3; None: the same.

        Raises:
          SpecError: an argument is wrong or has no kernel.
        """
        table = [options.get(name) for name in ("cum_seq_lens_q", "block_tables", "seq_lens")]
        rows: tuple[Any, ...] = (qo_indptr, kv_indptr, kv_indices, kv_len_arr)
        if any(x is not None for x in table):
            if any(x is not None for x in rows):
                raise SpecError("pass cum_seq_lens_q, block_tables and seq_lens, or kv_indptr")
            rows = _rows_of_table(table[0], table[1], table[2])
        heads = integer("num_heads", num_heads, 1)
        integer("head_dim_ckv", head_dim_ckv, COLUMNS, COLUMNS)
        rotated = integer("head_dim_kpe", head_dim_kpe, 0, 64)
        dtypes = (operand_dtype(q_data_type, "q_data_type"),
                  operand_dtype(kv_data_type, "kv_data_type"))  # fmt: skip
        computed = "bf16" if dtypes[0] in NARROW else dtypes[0]
        if output_dtype(options.get("output_dtype"), "output_dtype") not in (None, computed):
            raise SpecError(
                f"output_dtype must be {computed} as O is, got {options['output_dtype']}"
            )
        if sm_scale is None:
            raise SpecError("sm_scale must be given: no head size tells it")
        is_causal = causal is not None and flag("causal", causal)
        offsets = indices(rows[0], QUERIES).cpu()
        counts = lengths_of(QUERIES, offsets)
        paged = rows_by_lengths(rows[1], rows[2], rows[3], page_size)
        batch = len(counts)
        if paged[2].shape[0] != batch:
            raise SpecError(f"qo_indptr has {batch} sequences, those of keys are {len(paged[2])}")
        longest = max(counts, default=0)
        limit = options.get("max_q_len")
        if limit is not None and integer("max_q_len", limit, 0) < longest:
            raise SpecError(f"max_q_len is {limit}: a sequence has {longest} queries")
        is_equal = all(n == longest for n in counts)
        captured = self._buffers.external is not None
        if captured and not is_equal:
            raise SpecError("qo_indptr of a wrapper for graphs must have equal numbers of queries")
        if captured and self._call is not None and self._queries != longest:
            raise SpecError(
                f"sequences have {longest} queries, those of a wrapper for graphs stay "
                f"{self._queries}"
            )
        stored = {QUERIES: offsets, OFFSETS: paged[0], ENTRIES: paged[1], LAST: paged[2]}
        stored[LENGTHS] = indices(rows[3], LENGTHS).cpu()
        for name, value in stored.items():
            self._buffers.check(name, value, whole=name != ENTRIES)
        for name, value in stored.items():
            self._buffers.store(name, value)
        self._rows = None
        if not is_equal:  # the last queries of each sequence are those of the longest one
            spread = torch.full((batch,), longest, dtype=torch.int32)
            places = positions_in(offsets, spread)
            sequences = torch.repeat_interleave(offsets.diff())
            self._rows = (sequences * longest + places).to(self._buffers.device)
        self._queries = longest
        self._sizes, self._dtypes = (batch, heads, COLUMNS + rotated), dtypes
        self._call = LatentCall(sm_scale, causal=is_causal)

    @with_arguments(
        "self q_nope q_pe ckv_cache kpe_cache out lse return_lse profiler_buffer kv_len page_table "
        "return_lse_base_on_e o_scale",
        "ckv_scale ckv_scale_arr kpe_scale skip_softmax_threshold_scale_factor",
    )
    def run(
        self,
        q_nope: Any = None,
        q_pe: Any = None,
        ckv_cache: Any = None,
        kpe_cache: Any = None,
        out: Any = None,
        lse: Any = None,
        return_lse: bool = False,
        return_lse_base_on_e: bool = False,
        *,
        query: Any = None,
        kv_cache: Any = None,
        sinks: Any = None,
        bmm1_scale: Any = None,
        bmm2_scale: Any = None,
    ) -> Any:
        """Attention of the queries to the latent rows.

        Args:
          q_nope: [qo_indptr[-1], num_heads, 512]; q_pe: [qo_indptr[-1], num_heads, 64]; or `query`,
            both in one array or a pair.
          ckv_cache: [pages, page, 512]; kpe_cache: [pages, page, 64]; or `kv_cache` likewise. Parts
            that are not columns of one array are copied behind one another in each call.
          out: [qo_indptr[-1], num_heads, 512], memory for O.
          lse: [qo_indptr[-1], num_heads] f32, memory for LSE; return_lse: whether it is returned.
          return_lse_base_on_e: natural logarithms, else base 2.
          sinks: [num_heads], which count in LSE.
          bmm1_scale: in the place of sm_scale; bmm2_scale: of O; numbers.

        Returns:
          O in q's dtype, bf16 for e4m3; with `return_lse` also LSE.

        Raises:
          SpecError: `plan` was not called, or for other sizes; or an argument is wrong.
        """
        if self._call is None or self._queries is None:
            raise SpecError("plan has not been called: it says what run computes")
        q = one_array(query, (q_nope, q_pe), ("query", "q_nope", "q_pe"))
        pool = one_array(kv_cache, (ckv_cache, kpe_cache), ("kv_cache", "ckv_cache", "kpe_cache"))
        batch, heads, columns = self._sizes
        tokens = batch * self._queries if self._rows is None else self._rows.shape[0]
        operands = {"query": (q, (tokens, heads, columns)), "kv_cache": (pool, (columns,))}
        for (name, (x, shape)), dtype in zip(operands.items(), self._dtypes, strict=True):
            if tuple(x.shape[-len(shape) :]) != shape or x.dtype != TORCH_DTYPES[dtype]:
                raise SpecError(
                    f"{name} must end in {list(shape)} of {dtype} as planned, got {list(x.shape)} "
                    f"of {x.dtype}"
                )
        if self._rows is not None:
            spread = q.new_zeros(batch * self._queries, heads, columns)
            spread[self._rows] = q
            q = spread
        base = tuple(BASES)[flag("return_lse_base_on_e", return_lse_base_on_e)]
        scale = self._call.scale if bmm1_scale is None else number("bmm1_scale", bmm1_scale, 1.0)
        output = number("bmm2_scale", bmm2_scale, 1.0)
        call = LatentCall(scale, output, self._call.causal, base)
        q = q.unflatten(0, (batch, self._queries))
        results = {"out": out, "lse": lse, "sinks": sinks, "rows": self._rows}
        found = renamed(call.__call__, **_NAMES)(q, pool, self._pages(), **results)
        return found if flag("return_lse", return_lse) else found[0]

    def _pages(self) -> Mapping[str, Any]:
        current = self._buffers.current
        return {"indptr": current[OFFSETS], "indices": current[ENTRIES], LAST: current[LAST]}


def _rows_of_table(cum_seq_lens_q: Any, block_tables: Any, seq_lens: Any) -> tuple[Any, ...]:
    """Compressed rows of all columns of a table.

    Raises:
      SpecError: one of the three is missing, or of another rank or dtype.
    """
    if cum_seq_lens_q is None or block_tables is None or seq_lens is None:
        raise SpecError("cum_seq_lens_q, block_tables and seq_lens must be given together")
    batch, columns = tensor(block_tables, "block_tables", 2).shape
    offsets = torch.arange(batch + 1, dtype=torch.int32) * columns
    counted = {"cum_seq_lens_q": cum_seq_lens_q, "seq_lens": seq_lens}
    queries, lengths = (indices(x, name) for name, x in counted.items())
    return queries, offsets, block_tables.flatten(), lengths
