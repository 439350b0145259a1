"""Tokens into paged caches, as FlashInfer has it."""

from __future__ import annotations

import sys
from typing import Any, cast

import numpy as np

from attn_mlir.arrays import check_memory
from attn_mlir.caches import PagedKV
from attn_mlir.calls import append_kv
from attn_mlir.compiling.options import HEAD_DIM_STEP
from attn_mlir.errors import SpecError, no_kernel
from attn_mlir.library import check_one_library, in_i32, library_of
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import integer
from attn_mlir.runtime.call.tensors import TensorView, host_array, view

INDEX_DTYPES = ("i32", "i64")
MAX_COLUMNS = 256  # of a head in `append_kv`
CALLED = {
    "k_new": "append_key",
    "v_new": "append_value",
    "indices": "kv_indices",
    "indptr": "kv_indptr",
    "last_page_len": "kv_last_page_len",
}
_append = renamed(append_kv, k_pages="paged_kv_cache", v_pages="a second array", **CALLED)
_append_to_pair = renamed(
    append_kv, k_pages="paged_kv_cache[0]", v_pages="paged_kv_cache[1]", **CALLED
)
_append_latent = renamed(
    append_kv,
    **{**CALLED, "k_new": "append_ckv", "v_new": "append_kpe"},
    k_pages="ckv_cache",
    v_pages="kpe_cache",
)
_paged = renamed(PagedKV, layout="kv_layout")


def append_paged_kv_cache(
    append_key: Any,
    append_value: Any,
    batch_indices: Any,
    positions: Any,
    paged_kv_cache: Any,
    kv_indices: Any,
    kv_indptr: Any,
    kv_last_page_len: Any,
    kv_layout: str = "NHD",
) -> None:
    """As `flashinfer.append_paged_kv_cache`: writes keys and values of tokens into a paged cache.

    Pages have to be there already: the lists of pages count the new tokens.

    Args:
      append_key: [tokens, kv_heads, head_dim]; append_value: [tokens, kv_heads, v_head_dim].
      batch_indices: [tokens], the sequence of each token; a token with a negative one is ignored.
      positions: [tokens], its position there.
      paged_kv_cache: K and V side by side, [pages, 2, page, kv_heads, head_dim] (NHD) or
        [pages, 2, kv_heads, page, head_dim] (HND), or a tuple of both as arrays of their own.
      kv_indices: [entries], pages of all sequences; those of sequence b begin at kv_indptr[b].
      kv_indptr: [batch + 1].
      kv_last_page_len: [batch], positions in each last page.
      kv_layout: NHD or HND.

    Raises:
      SpecError: an argument is wrong; see `append_kv`.
    """
    is_pair = isinstance(cast(object, paged_kv_cache), (tuple, list))
    pools = tuple(cast("tuple[Any, ...]", paged_kv_cache)) if is_pair else (paged_kv_cache, None)
    if len(pools) != 2:
        raise SpecError(f"paged_kv_cache must be one array or a pair, got {len(pools)} arrays")
    cache = _paged(
        *pools,
        layout=kv_layout,
        indices=_narrow(kv_indices, "kv_indices"),
        indptr=_narrow(kv_indptr, "kv_indptr"),
        last_page_len=_narrow(kv_last_page_len, "kv_last_page_len"),
    )
    (_append_to_pair if is_pair else _append)(
        cache,
        append_key,
        append_value,
        _narrow(positions, "positions"),
        batch_indices=_narrow(batch_indices, "batch_indices"),
    )


def append_paged_mla_kv_cache(
    append_ckv: Any,
    append_kpe: Any,
    batch_indices: Any,
    positions: Any,
    ckv_cache: Any,
    kpe_cache: Any,
    kv_indices: Any,
    kv_indptr: Any,
    kv_last_page_len: Any,
) -> None:
    """As `flashinfer.append_paged_mla_kv_cache`: latent rows of tokens into both paged caches.

    Both are written in one launch, in which columns of a row are those of several heads.

    Args:
      append_ckv: [tokens, ckv_dim]; append_kpe: [tokens, kpe_dim].
      ckv_cache: [pages, page, ckv_dim]; kpe_cache: [pages, page, kpe_dim]; they may be columns of
        one array. A kernel has up to 256 columns of a head, in steps of 8.
      others: see `append_paged_kv_cache`.

    Raises:
      SpecError: an argument is wrong; see `append_kv`.
    """
    rows = {"append_ckv": append_ckv, "append_kpe": append_kpe}
    pools = {"ckv_cache": ckv_cache, "kpe_cache": kpe_cache}
    for rank, arrays in ((2, rows), (3, pools)):
        for name, array in arrays.items():
            if len(shape := view(array, name).shape) != rank:
                raise SpecError(f"{name} must have {rank} dimensions, got {list(shape)}")
    columns = [x.shape[-1] for x in pools.values()]
    if [x.shape[-1] for x in rows.values()] != columns:
        given = [x.shape[-1] for x in rows.values()]
        raise SpecError(f"append_ckv and append_kpe have {given} columns, the caches {columns}")
    heads = -(-columns[0] // MAX_COLUMNS)
    if any(x % (heads * HEAD_DIM_STEP) for x in columns):
        raise SpecError(
            no_kernel(
                f"a row of {columns[0]} and {columns[1]} columns",
                f"multiples of {heads * HEAD_DIM_STEP}",
            )
        )
    k, v, k_pages, v_pages = (
        x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)
        for x in (*rows.values(), *pools.values())
    )
    cache = _paged(
        k_pages,
        v_pages,
        layout="NHD",
        indices=_narrow(kv_indices, "kv_indices"),
        indptr=_narrow(kv_indptr, "kv_indptr"),
        last_page_len=_narrow(kv_last_page_len, "kv_last_page_len"),
    )
    _append_latent(
        cache, k, v, _narrow(positions, "positions"),
        batch_indices=_narrow(batch_indices, "batch_indices"),
    )  # fmt: skip


def get_batch_indices_positions(
    append_indptr: Any,
    seq_lens: Any,
    nnz: int,
    batch_indices: Any = None,
    positions: Any = None,
) -> tuple[Any, Any]:
    """As `flashinfer.get_batch_indices_positions`: where each token of a ragged batch belongs.

    Sequence b has the tokens from append_indptr[b] to before append_indptr[b + 1], which are the
    last ones of its seq_lens[b] positions. Tokens of no sequence have the index -1 and the position
    0. Nothing is read back from a GPU.

    Args:
      append_indptr: [batch + 1]; seq_lens: [batch], the new tokens counted; numpy or torch.
      nnz: tokens.
      batch_indices, positions: [nnz] of i32, memory for the results.

    Returns:
      Sequence and position of each token, [nnz] of i32, where the offsets are.

    Raises:
      SpecError: an argument is wrong.
    """
    count = integer("nnz", nnz)
    arguments = {"append_indptr": append_indptr, "seq_lens": seq_lens}
    memory = {"batch_indices": batch_indices, "positions": positions}
    offsets, lengths = (view(x, name) for name, x in arguments.items())
    for name, index in zip(arguments, (offsets, lengths), strict=True):
        if index.dtype not in INDEX_DTYPES:
            raise SpecError(f"{name} must be of {' or '.join(INDEX_DTYPES)}, got {index.dtype}")
    if len(offsets.shape) != 1 or not offsets.shape[0]:
        raise SpecError(f"append_indptr must be [batch + 1], got {list(offsets.shape)}")
    if lengths.shape != (offsets.shape[0] - 1,):
        raise SpecError(f"seq_lens must be [{offsets.shape[0] - 1}], got {list(lengths.shape)}")
    check_one_library(arguments | memory)
    if library_of(append_indptr) == "cupy":
        raise SpecError("append_indptr must be an array of numpy or torch, got one of cupy")
    for name, array in memory.items():
        if array is not None:
            check_memory(
                name, array, (count,), "i32", {x: view(arguments[x], x) for x in arguments}
            )
    _check_offsets(offsets, lengths)
    computed = _positions(append_indptr, seq_lens, count)
    for array, numbers in zip(memory.values(), computed, strict=True):
        if array is not None:
            array[:] = numbers
    first, second = (
        numbers if array is None else array
        for array, numbers in zip(memory.values(), computed, strict=True)
    )
    return first, second


def _check_offsets(offsets: TensorView, lengths: TensorView) -> None:
    """Refuses offsets in host memory that are none, and lengths that do not count the new tokens.

    Raises:
      SpecError: names the entry.
    """
    if not (
        offsets.device == lengths.device == "cpu" and offsets.has_memory and lengths.has_memory
    ):
        return
    ends, lengths_of_sequences = (host_array(x).astype(np.int64) for x in (offsets, lengths))
    if ends[0] < 0:
        raise SpecError(f"append_indptr must begin at 0 or later, got {ends[0]}")
    for b, new in enumerate(np.diff(ends).tolist()):
        if new < 0:
            raise SpecError(f"append_indptr must not decrease: sequence {b} has {new} tokens")
        if lengths_of_sequences[b] < new:
            raise SpecError(
                f"seq_lens[{b}] is {lengths_of_sequences[b]}: sequence {b} has {new} new tokens"
            )


def _positions(offsets: Any, lengths: Any, count: int) -> tuple[Any, Any]:
    """Sequence and position of each token."""
    if _is_torch(offsets):
        torch: Any = sys.modules["torch"]
        lengths = lengths.to(offsets.device)
        tokens = torch.arange(count, device=offsets.device, dtype=offsets.dtype)
        sequence = torch.searchsorted(offsets[1:].contiguous(), tokens, right=True)
        where: Any = torch.where
    else:
        offsets, lengths = np.asarray(offsets), np.asarray(lengths)
        tokens = np.arange(count, dtype=offsets.dtype)
        sequence = np.searchsorted(offsets[1:], tokens, side="right")
        where = np.where
    batch = lengths.shape[0]
    if not batch:
        return in_i32(tokens * 0 - 1), in_i32(tokens * 0)
    is_there = (tokens >= offsets[0]) & (sequence < batch)
    sequence = where(is_there, sequence, 0)
    position = tokens + lengths[sequence] - offsets[1:][sequence]
    return in_i32(where(is_there, sequence, -1)), in_i32(where(is_there, position, 0))


def _narrow(array: Any, name: str) -> Any:
    """An index array in i32, of which torch makes i64."""
    if _is_torch(array):  # which the compiler of PyTorch may be tracing
        return in_i32(array) if array.dtype == sys.modules["torch"].int64 else array
    return in_i32(array) if view(array, name).dtype == "i64" else array


def _is_torch(array: object) -> bool:
    return type(array).__module__.partition(".")[0] == "torch"
