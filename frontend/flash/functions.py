"""FlashAttention's functions of q, k and v, and the combination of parts.

Positions are those of FlashAttention 2, names those of 2, 3 and 4 and of vLLM's and SGLang's forks.
Hints, such as `pack_gqa`, change nothing: see `table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attn_mlir.adapters import Options, adapter, passed
from attn_mlir.api.array_checks import checked_array
from attn_mlir.api.attention import output_dtype_of
from attn_mlir.api.combining import combination_of
from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.arrays import caller_output, stream_of
from attn_mlir.caches import PagedKV
from attn_mlir.calls import attention
from attn_mlir.compiling.dtypes import OUT_DTYPES, dtype_name
from attn_mlir.compiling.splits import MAX_SPLITS
from attn_mlir.errors import SpecError, shown
from attn_mlir.flash.head_sizes import are_whole, in_whole_heads
from attn_mlir.flash.lengths import batch_of, descale, distance, shape_of_rank, with_slopes
from attn_mlir.flash.options import (
    OF_PACKED,
    OF_PACKED_KEYS,
    OF_SEQUENCES,
    OPTIONS,
    TABLE,
    called_in_parts,
    counted_sinks,
    with_sinks_of,
)
from attn_mlir.flash.rotary import full_like
from attn_mlir.flash.table import BY_NAME, BY_POSITION, NEUTRAL, OF_PARTS
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import as_int, flag, integer
from attn_mlir.runtime.call.tensors import TensorView, shape_of, view
from attn_mlir.runtime.kernel import DeviceChoice

IN_PAGES = {
    "k_pages": "k",
    "v_pages": "v",
    "seqused": "seqused_k",
    "k_scale": "k_descale",
    "v_scale": "v_descale",
}  # fields of a cache
LENGTHS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
Operands = tuple[Any, Any, Any]  # q, k and v


def attend(operands: Operands, given: Mapping[str, Any], options: Options = OPTIONS) -> Any:
    """The call of `attention` for all of FlashAttention's functions of q, k and v.

    Args:
      operands: q, k and v.
      given: the options of the call by name, those of `options`; of all functions:
      softmax_scale: 1 / sqrt(head_dim) when left out.
      causal: query i of sq sees keys up to i + sk - sq.
      window_size: how far to the left and to the right of that key a query sees; -1 or None: all.
      softcap: scores become cap * tanh(score / cap); 0: they stay as they are.
      alibi_slopes: [heads] or [batch, heads] f32: slope x |i + sk - sq - j| is subtracted.
      attention_chunk: positions of a chunk; a query sees the keys of its own chunk. 0: all keys.
      learnable_sink: [heads], see `attention`; LSE counts it, as FlashAttention's does. s_aux,
        sinks: the same.
      num_splits: number of parts of the keys; 0 chooses. One part where no kernel has so many.
      sm_margin: multiprocessors that the call leaves free, see `attention`.
      q_descale, k_descale, v_descale: scales of 8-bit operands, see `attention`; 1 if None. Those
        of operands of 16 bits are not looked at.
      return_lse: also return LSE, [batch, heads, sq]; [heads, total_q] for queries by offsets.
        return_softmax_lse: the same.
      return_attn_probs: also return LSE and, in the place of probabilities, None.
      out: memory for O, see `attention`.
      device, stream: see `attention`.

    Returns:
      O like q, with `return_lse` also LSE.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    q, k, v = operands
    if not are_whole(q, k, v):
        named = {"q": q, "k": k, "v": v}
        return in_whole_heads(lambda whole, x: attend(whole, x, options), named, given)
    given = {**given, "k_descale": descale(given.get("k_descale"), k)}
    given["v_descale"] = descale(given.get("v_descale"), v)
    return _attend(attention, operands, k, given, options)


def _attend(
    function: Callable[..., Any],
    operands: tuple[Any, ...],
    k: Any,
    given: Mapping[str, Any],
    options: Options,
    lengths: Any = None,
) -> Any:
    """`attend` for k and v, or for a cache in their place.

    Args:
      function: `attention`.
      operands: q, k and v, or q and a cache.
      k: the keys.
      lengths: [batch], keys of each sequence; None where `given` has them.
    """
    q, ours = operands[0], options.ours(given)
    others: dict[str, Any] = {"q_descale": descale(given.get("q_descale"), q)}
    if (slopes := given.get("alibi_slopes")) is not None:
        lengths_given = ours if lengths is None else {**ours, "seqused_k": lengths}
        others["score_mod"] = with_slopes(ours["score_mod"], slopes, distance(q, k, lengths_given))
    sinks = counted_sinks(ours["return_lse"], given, q)
    results = called_in_parts(options, function, *operands, given=given, **others)
    if sinks is not None:
        results = with_sinks_of(results, sinks, given.get("stream"))
    return (*results, None) if given.get("return_attn_probs") else results


def with_options(
    positions: str, options: Options = OPTIONS, last: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a function FlashAttention's options.

    Args:
      positions: its arguments before those that all functions take by position; last: after them.
    """
    every = Options([*options.rows, *passed("alibi_slopes")])
    return adapter(NEUTRAL, f"{positions} {BY_POSITION} {last}", BY_NAME, options=every)


@with_options("q k v")
def flash_attn_func(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """As `flash_attn.flash_attn_func`.

    Args:
      q: [batch, sq, heads, head_dim]; k and v: [batch, sk, kv_heads, head_dim].
      options: see `attend`.

    Returns:
      O like q, with `return_lse` also LSE.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    return attend((q, k, v), options)


@with_options(f"q k v {LENGTHS}", OF_SEQUENCES, last="block_table")
def flash_attn_varlen_func(
    q: Any, k: Any, v: Any, *, block_table: Any = None, page_table: Any = None, **options: Any
) -> Any:
    """As `flash_attn.flash_attn_varlen_func`, and as vLLM's and SGLang's by name.

    Args:
      q: [total_q, heads, head_dim]; k and v: [total_k, kv_heads, head_dim]. A side without
        offsets is dense, as in `flash_attn_func`.
      cu_seqlens_q, cu_seqlens_k: [batch + 1] i32, where sequences begin and the last one ends.
      max_seqlen_q, max_seqlen_k: no sequence is longer; see `attention`. The latter is not looked
        at without cu_seqlens_k.
      seqused_q, seqused_k: [batch] i32, of each sequence only so many positions exist.
      block_table, page_table: [batch, columns] i32, the pages of each sequence; one of both names.
        k and v are then [pages, page, kv_heads, head_dim], and a sequence has seqused_k[b] keys, or
        as many as cu_seqlens_k tells.
      options: see `attend`.

    Returns:
      O like q, with `return_lse` also LSE, [heads, total_q].

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    tables = {"block_table": block_table, "page_table": page_table}
    table, offsets = TABLE.value(tables), options.get("cu_seqlens_k")
    if table is None and offsets is not None:
        return attend((q, k, v), options, OF_SEQUENCES)
    if (longest := options.pop("max_seqlen_k", None)) is not None:
        integer("max_seqlen_k", longest)
    if table is None:
        return attend((q, k, v), options, OF_SEQUENCES)
    if not are_whole(q, k, v):
        named = {"q": q, "k": k, "v": v}
        return in_whole_heads(
            lambda whole, x: flash_attn_varlen_func(*whole, **{**tables, **x}), named, options
        )
    called = {**IN_PAGES, "page_table": TABLE.named(tables)}
    lengths = options.pop("seqused_k", None)
    options.pop("cu_seqlens_k", None)
    if lengths is None and offsets is not None:
        shape_of_rank("cu_seqlens_k", offsets, 1)
        lengths, called["seqused"] = offsets[1:] - offsets[:-1], "cu_seqlens_k"
    given_scales = {
        "k_scale": options.pop("k_descale", None),
        "v_scale": options.pop("v_descale", None),
    }
    scales = {name: descale(x, k if name == "k_scale" else v) for name, x in given_scales.items()}
    cache = PagedKV(k, v, table, lengths, **scales)
    paged = renamed(attention, **called)
    if options.get("alibi_slopes") is not None and lengths is None:
        columns = shape_of_rank(called["page_table"], table, 2)[1]
        room = shape_of_rank("k", k, 4)[1] * columns
        lengths = full_like(q, batch_of(q, options.get("cu_seqlens_q")), room)
    return _attend(paged, (q, cache), k, options, OF_SEQUENCES, lengths)


@with_options("qkv")
def flash_attn_qkvpacked_func(qkv: Any, *, num_heads_q: int | None = None, **options: Any) -> Any:
    """As `flash_attn.flash_attn_qkvpacked_func`: q, k and v are views of one array, not copies.

    Args:
      qkv: [batch, sequence, 3, heads, head_dim], or with `num_heads_q` [batch, sequence,
        num_heads_q + 2 kv_heads, head_dim], the heads of q, k and v one after the other.
      num_heads_q: as FlashAttention 3 has it.
      options: see `attend`.

    Returns:
      O, [batch, sequence, heads, head_dim], with `return_lse` also LSE.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    if num_heads_q is None:
        return attend(_unpacked(qkv, "qkv", 5), options)
    return attend(_split_heads(qkv, num_heads_q), options)


@with_options("q kv")
def flash_attn_kvpacked_func(q: Any, kv: Any, **options: Any) -> Any:
    """As `flash_attn.flash_attn_kvpacked_func`: k and v are views of one array, not copies.

    Args:
      q: [batch, sq, heads, head_dim].
      kv: [batch, sk, 2, kv_heads, head_dim].
      options: see `attend`.

    Returns:
      O like q, with `return_lse` also LSE.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    return attend((q, *_unpacked(kv, "kv", 5)), options)


@with_options("qkv cu_seqlens max_seqlen", OF_PACKED)
def flash_attn_varlen_qkvpacked_func(qkv: Any, **options: Any) -> Any:
    """As `flash_attn.flash_attn_varlen_qkvpacked_func`.

    Args:
      qkv: [total, 3, heads, head_dim].
      cu_seqlens, max_seqlen: of queries and keys, see `flash_attn_varlen_func`.
      options: see `attend`.

    Returns:
      O, [total, heads, head_dim], with `return_lse` also LSE, [heads, total].

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    return attend(_unpacked(qkv, "qkv", 4), options, OF_PACKED)


@with_options(f"q kv {LENGTHS}", OF_PACKED_KEYS)
def flash_attn_varlen_kvpacked_func(q: Any, kv: Any, **options: Any) -> Any:
    """As `flash_attn.flash_attn_varlen_kvpacked_func`.

    Args:
      q: [total_q, heads, head_dim].
      kv: [total_k, 2, kv_heads, head_dim].
      cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k: see `flash_attn_varlen_func`.
      options: see `attend`.

    Returns:
      O like q, with `return_lse` also LSE, [heads, total_q].

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    return attend((q, *_unpacked(kv, "kv", 4)), options, OF_PACKED_KEYS)


@outside_graphs
@adapter(NEUTRAL, f"out_partial lse_partial out out_dtype {' '.join(OF_PARTS)} return_lse")
def flash_attn_combine(
    out_partial: Any,
    lse_partial: Any,
    out: Any = None,
    out_dtype: object = None,
    return_lse: bool = True,
    *,
    device: DeviceChoice = None,
    stream: object = None,
) -> tuple[Any, Any]:
    """As `flash_attn.cute.flash_attn_combine`: results for parts of the keys become those for all.

    Args:
      out_partial: [splits, batch, sq, heads, head_dim] or [splits, total, heads, head_dim], f32.
      lse_partial: [splits, batch, sq, heads] or [splits, total, heads], f32, natural logarithms;
        its positions lie one behind the other. -inf or +inf: no keys, and O of the part is not
        looked at.
      out: memory for O, see `attention`.
      out_dtype: of O; f32 when left out, or that of `out`.
      return_lse: whether LSE is computed.
      device, stream: see `attention`.

    Returns:
      O, [batch, sq, heads, head_dim] or [total, heads, head_dim], and LSE likewise, without the
      last axis, or None.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    parts, sums = view(out_partial, "out_partial"), view(lse_partial, "lse_partial")
    if parts.dtype != "f32" or len(parts.shape) not in (4, 5):
        raise SpecError(
            "out_partial must be f32 [splits, batch, sq, heads, head_dim] or [splits, total, "
            f"heads, head_dim], got {list(parts.shape)} of {parts.dtype}"
        )
    checked_array("lse_partial", sums, parts.shape[:-1], "f32", note=" as out_partial")
    if sums.shape[-2] > 1 and sums.strides[-2] != 1 and not sums.empty:
        raise SpecError(
            f"lse_partial has strides {list(sums.strides)}: positions must lie one behind the "
            "other, as in lse.swapaxes(-1, -2) of a dense [..., heads, sq]"
        )
    if not 1 <= parts.shape[0] <= MAX_SPLITS:
        raise SpecError(f"out_partial has {parts.shape[0]} parts, allowed are 1 to {MAX_SPLITS}")
    if out_dtype is not None:
        dtype = dtype_name(out_dtype, "out_dtype", OUT_DTYPES)
    else:
        dtype = "f32" if out is None else output_dtype_of(out)
    others = {"out_partial": parts, "lse_partial": sums}
    memory = None if out is None else caller_output(out, parts.shape[1:], dtype, others)
    results = combination_of(
        out_partial,
        _with_batch(parts, 5),
        _swapped(_with_batch(sums, 4)),
        is_ragged=len(parts.shape) == 4,
        out_dtype=dtype,
        return_lse=flag("return_lse", return_lse),
        out=memory,
        device=device,
        stream=stream_of(stream, device, out_partial, parts),
    ).execute()
    lse = results.get("lse")
    return results["o"], None if lse is None else lse.swapaxes(-1, -2)


def _unpacked(packed: Any, name: str, rank: int) -> tuple[Any, ...]:
    """The parts of a packed array, which lie along the third axis from behind."""
    count = len(name)
    shape = shape_of(packed, name, has_gradient=True)
    if len(shape) != rank or shape[-3] != count:
        axes = "batch, sequence" if rank == 5 else "total"
        raise SpecError(f"{name} must be [{axes}, {count}, heads, head_dim], got {list(shape)}")
    return tuple(packed[..., part, :, :] for part in range(count))


def _split_heads(packed: Any, num_heads_q: object) -> tuple[Any, ...]:
    """q, k and v of an array that has their heads one after the other."""
    shape, heads = shape_of(packed, "qkv", has_gradient=True), as_int(num_heads_q)
    if len(shape) != 4 or heads is None or not 0 < heads < shape[2] or (shape[2] - heads) % 2:
        raise SpecError(
            "num_heads_q must leave an even number of heads of qkv [batch, sequence, num_heads_q "
            f"+ 2 kv_heads, head_dim] for k and v, got {shown(num_heads_q, 40)} and {list(shape)}"
        )
    kv = (shape[2] - heads) // 2
    return packed[:, :, :heads], packed[:, :, heads : heads + kv], packed[:, :, heads + kv :]


def _with_batch(tensor: TensorView, rank: int) -> TensorView:
    """Parts of rows as those of a batch of one sequence; those of a batch as they are."""
    if len(tensor.shape) == rank:
        return tensor
    return tensor.reshaped(
        (tensor.shape[0], 1, *tensor.shape[1:]), (tensor.strides[0], 0, *tensor.strides[1:])
    )


def _swapped(tensor: TensorView) -> TensorView:
    """The last two axes in the other order."""
    *shape, a, b = tensor.shape
    *strides, step_a, step_b = tensor.strides
    return tensor.reshaped((*shape, b, a), (*strides, step_b, step_a))
