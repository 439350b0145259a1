"""FlashAttention's function for a cache of keys and values, which appends to it first."""

from __future__ import annotations

from typing import Any, cast

from attn_mlir.adapters import adapter, check_needs
from attn_mlir.caches import ContiguousKV, PagedKV
from attn_mlir.calls import append_kv, prepared
from attn_mlir.errors import SpecError
from attn_mlir.flash.head_sizes import are_whole, in_whole_heads
from attn_mlir.flash.lengths import (
    batch_of,
    check_extents,
    counts,
    descale,
    rows_of,
    shape_of_rank,
    with_slopes,
)
from attn_mlir.flash.options import (
    OF_CACHES,
    TABLE,
    called_in_parts,
    counted_sinks,
    with_sinks_of,
)
from attn_mlir.flash.rotary import check_angles, check_rows, full_like, positions_of, rotated
from attn_mlir.flash.table import HINTS, NEUTRAL
from attn_mlir.library import check_one_library
from attn_mlir.masks import full
from attn_mlir.mods import key_padding, not_mask
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import flag, integer
from attn_mlir.runtime.call.tensors import shape_of
from attn_mlir.trace import MaskMod

CALLED = {
    "k": "k_cache",
    "v": "v_cache",
    "k_pages": "k_cache",
    "v_pages": "v_cache",
    "seqused": "cache_seqlens",
    "k_scale": "k_descale",
    "v_scale": "v_descale",
    "batch_idx": "cache_batch_idx",
    "leftpad": "cache_leftpad",
}  # fields of a cache
_prepared = renamed(prepared, **CALLED)
_append = renamed(append_kv, k_new="k", v_new="v", cu_seqlens="cu_seqlens_k_new", **CALLED)
_OF_ALIBI = dict.fromkeys(("slopes", "heads of ALiBi"), "alibi_slopes")

_FOR_NEW = "is for new keys: pass k and v, or leave it out"
NEEDS = (
    ("k", "v", "v is missing: k comes with it"),
    ("v", "k", "k is missing: v comes with it"),
    ("rotary_cos", "rotary_sin", "rotary_sin is missing: rotary_cos comes with it"),
    ("rotary_sin", "rotary_cos", "rotary_cos is missing: rotary_sin comes with it"),
    ("rotary_cos", "k", f"rotary_cos {_FOR_NEW}"),
    (
        "k",
        "cache_seqlens",
        "cache_seqlens is missing: k and v are written behind what the cache holds",
    ),
)


@adapter(
    NEUTRAL,
    "q k_cache v_cache k v qv rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad "
    "page_table cu_seqlens_q cu_seqlens_k_new max_seqlen_q rotary_seqlens q_descale k_descale "
    "v_descale softmax_scale causal window_size attention_chunk softcap rotary_interleaved "
    "scheduler_metadata num_splits pack_gqa sm_margin return_softmax_lse",
    HINTS,
    options=OF_CACHES,
)
def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    page_table: Any = None,
    cu_seqlens_k_new: Any = None,
    rotary_seqlens: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    rotary_interleaved: bool = True,
    *,
    block_table: Any = None,
    alibi_slopes: Any = None,
    **options: Any,
) -> Any:
    """As `flash_attn_with_kvcache` of FlashAttention 3; `block_table` and `alibi_slopes` are those
    of 2.

    Args:
      q: [batch, sq, heads, head_dim], or with `cu_seqlens_q` [total_q, heads, head_dim].
      k_cache, v_cache: [rows, positions, kv_heads, head_dim], or with a table [pages, page,
        kv_heads, head_dim].
      k, v: new keys and values, [batch, n, kv_heads, head_dim], or with `cu_seqlens_k_new` [total,
        kv_heads, head_dim]: they are written into the cache first, behind `cache_seqlens`. Of the
        cache's dtype, or of bf16 or f16 for one of 8 bits; see `attn_mlir.append_kv`.
      rotary_cos, rotary_sin: [positions, rotary_dim / 2]. New token i of sequence b is rotated by
        row cache_seqlens[b] + i, padding counted, on its way into the cache; and a copy of q
        likewise if causal or within a window or a chunk, else all by row cache_seqlens[b]. Only
        with k.
      cache_seqlens: a number or [batch] i32: positions that the cache holds, without k; all if
        None.
      cache_batch_idx: [batch] i32, the row of each sequence, in the cache or in the table.
      cache_leftpad: [batch] i32, where each sequence begins in its row or pages. With a table not
        together with attention_chunk.
      page_table, block_table: [batch, columns] i32, the pages of each sequence; one of both names.
      cu_seqlens_q, cu_seqlens_k_new: [batch + 1] i32, where sequences begin and the last one ends;
        the latter is not looked at without k.
      max_seqlen_q: no sequence has more queries; see `attention`.
      rotary_seqlens: [batch] i32: the rows of the first new tokens, in place of cache_seqlens; not
        looked at without rotary_cos.
      q_descale, k_descale, v_descale: scales of 8-bit operands, see `attention`; 1 if None. Those
        of operands of 16 bits are not looked at.
      softmax_scale, causal, window_size, softcap: see `flash_attn_func`.
      attention_chunk: a query sees keys of its own chunk of so many positions; 0: all.
      rotary_interleaved: pairs are neighbouring columns; else those of two halves.
      num_splits: parts of the keys; 0 chooses. One part where no kernel has so many.
      sm_margin: multiprocessors that the attention leaves free, see `attention`; the kernel that
        appends takes all.
      return_softmax_lse: also return LSE, which counts a sink.
      alibi_slopes: [heads] or [batch, heads] f32: slope x |i + sk - sq - j| is subtracted.
      learnable_sink, out, device, stream: see `attention`. s_aux, sinks: other names of the first.

    Returns:
      O like q, with `return_softmax_lse` also LSE, [batch, heads, sq], or [heads, total_q] for
      queries by offsets.

    Raises:
      SpecError: an argument is wrong or has no kernel; nothing was appended.
    """
    tables = {"page_table": page_table, "block_table": block_table}
    table = TABLE.value(tables)
    names = {"page_table": TABLE.named(tables), **_OF_ALIBI}
    cu_seqlens_k_new = None if k is None else cu_seqlens_k_new
    rotary_seqlens = None if rotary_cos is None else rotary_seqlens
    further = {
        "cache_seqlens": cache_seqlens,
        "cache_batch_idx": cache_batch_idx,
        "cache_leftpad": cache_leftpad,
        **tables,
        "k_descale": k_descale,
        "v_descale": v_descale,
        "alibi_slopes": alibi_slopes,
    }
    new = {"k": k, "v": v, "rotary_cos": rotary_cos, "rotary_sin": rotary_sin}
    firsts = {"cache_seqlens": cache_seqlens, "rotary_seqlens": rotary_seqlens}
    check_needs({**new, **firsts}, NEEDS)
    cu_seqlens_q = options.get("cu_seqlens_q")
    batch, shape = batch_of(q, cu_seqlens_q), shape_of(q, "q")
    lengths = cache_seqlens
    if lengths is not None and not (_has_shape(lengths) and shape_of(lengths, "cache_seqlens")):
        lengths = full_like(q, batch, integer("cache_seqlens", lengths))
    firsts["cache_seqlens"] = lengths
    ours = OF_CACHES.ours(options)
    offsets = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k_new": cu_seqlens_k_new}
    if k is not None or alibi_slopes is not None:
        of_batch = {**firsts, "cache_leftpad": cache_leftpad}
        check_one_library({"q": q, **of_batch, **offsets, **new})
        check_extents(of_batch, batch)
        check_extents(offsets, batch + 1)
    if k is None and not are_whole(q, k_cache, v_cache):
        return in_whole_heads(
            lambda whole, x: flash_attn_with_kvcache(*whole, **{**further, **x}),
            {"q": q, "k_cache": k_cache, "v_cache": v_cache},
            options,
        )
    rotary: tuple[Any, Any, bool] | None = None
    if rotary_cos is not None:
        check_angles(rotary_cos, rotary_sin, shape[-1])
        rotary = (rotary_cos, rotary_sin, flag("rotary_interleaved", rotary_interleaved))
        named = "cache_seqlens" if rotary_seqlens is None else "rotary_seqlens"
        first = (named, firsts[named])
        q = _rotated(q, first, cu_seqlens_q, rotary, grows=ours["mask"] != full())
        if rotary_seqlens is not None or cache_leftpad is not None:
            # these rows are not those of the tokens' positions in their sequences
            k_shape = shape_of_rank("k", k, 4 if cu_seqlens_k_new is None else 3)
            is_wrong = cu_seqlens_k_new is None and k_shape[0] != batch
            if is_wrong or k_shape[-1] != shape[-1]:
                raise SpecError(
                    f"k must be of {batch} sequences and {shape[-1]} columns, got {list(k_shape)}"
                )
            k, rotary = _rotated(k, first, cu_seqlens_k_new, rotary, grows=True), None

    hidden: MaskMod | None = None
    if table is not None and cache_leftpad is not None:
        if options.get("attention_chunk"):
            raise SpecError("attention_chunk must be 0 with cache_leftpad and a table of pages")
        check_extents({"cache_leftpad": cache_leftpad}, batch)
        hidden = not_mask(key_padding(cache_leftpad))
    if table is not None and cache_batch_idx is not None:
        check_one_library({"page_table": table, "cache_batch_idx": cache_batch_idx})
        check_extents({"cache_batch_idx": cache_batch_idx}, batch)
        table = rows_of(table, "cache_batch_idx", cache_batch_idx)

    def cache_of(seqused: Any, counts_new: bool) -> ContiguousKV | PagedKV:
        scales = {"k_scale": descale(k_descale, k_cache), "v_scale": descale(v_descale, v_cache)}
        if table is not None:
            return PagedKV(k_cache, v_cache, table, seqused, counts_new=counts_new, **scales)
        rows = {"batch_idx": cache_batch_idx, "leftpad": cache_leftpad}
        return ContiguousKV(k_cache, v_cache, seqused, counts_new=counts_new, **rows, **scales)

    total, counts_new = lengths, True
    if k is not None:
        total, counts_new = _with_new(lengths, k, shape, cu_seqlens_q, cu_seqlens_k_new)
    score_mod = ours["score_mod"]
    if alibi_slopes is not None:
        ahead = total
        if ahead is None:
            ahead = full_like(q, batch, renamed(_capacity, **names)(k_cache, table))
        if counts_new:
            ahead = ahead - counts(shape, cu_seqlens_q)
        ahead = ahead - cache_leftpad if cache_leftpad is not None and table is None else ahead
        score_mod = renamed(with_slopes, **names)(score_mod, alibi_slopes, ahead)
    return_lse = flag("return_softmax_lse", ours["return_lse"])
    sinks = counted_sinks(return_lse, options, q)
    cache = cache_of(total, counts_new)
    prepare = renamed(_prepared, **names)
    others = {
        "score_mod": score_mod,
        "mask_mod": hidden,
        "q_descale": descale(options.get("q_descale"), q),
    }
    run = called_in_parts(OF_CACHES, prepare, q, cache, given=options, **others)
    if k is not None:
        tokens = {"cu_seqlens": cu_seqlens_k_new, "rotary": rotary}
        where = {name: ours[name] for name in ("device", "stream")}
        append = renamed(_append, **names)
        append(cache_of(lengths, counts_new=False), k, v, **tokens, **where)
    return run() if sinks is None else with_sinks_of(run(), sinks, ours["stream"])


def _rotated(
    rows: Any, first: tuple[str, Any], offsets: Any, rotary: tuple[Any, Any, bool], *, grows: bool
) -> Any:
    """A copy of queries or keys, rotated.

    Args:
      rows: [batch, n, heads, head_dim], or with `offsets` [total, heads, head_dim].
      first: [batch] i32, the row of angles of each sequence's first token, after its name.
      rotary: as of `append_kv`.
      grows: whether each token has a row of angles of its own; else all have the first one.

    Raises:
      SpecError: rows of angles that do not exist.
    """
    cos, sin, is_interleaved = rotary
    name, begin = first
    check_rows(name, begin, counts(rows.shape, offsets) if grows else 1, cos)
    positions = positions_of(begin, rows.shape[-3], offsets, grows=grows)
    return rotated(rows, cos, sin, positions, is_interleaved=is_interleaved)


def _with_new(
    lengths: Any, k: Any, q_shape: tuple[int, ...], cu_seqlens_q: Any, cu_seqlens_k_new: Any
) -> tuple[Any, bool]:
    """Lengths of a cache that new keys are appended to, and whether they count these."""
    if cu_seqlens_k_new is None:
        count = shape_of_rank("k", k, 4)[1]
        is_as_queries = cu_seqlens_q is None and count == q_shape[1]
        return (lengths, False) if is_as_queries else (lengths + count, True)
    shape_of_rank("k", k, 3)
    if cu_seqlens_k_new is cu_seqlens_q:
        return lengths, False
    return lengths + (cu_seqlens_k_new[1:] - cu_seqlens_k_new[:-1]), True


def _has_shape(value: object) -> bool:
    """Whether a value is an array of any kind, whose shape is not asked for."""
    if hasattr(cast("type[Any]", type(value)), "shape"):
        return True
    return not isinstance(value, type) and "shape" in getattr(value, "__dict__", ())


def _capacity(k_cache: Any, table: Any) -> int:
    """Positions that the cache has for a sequence."""
    positions = shape_of_rank("k_cache", k_cache, 4)[1]
    return positions if table is None else positions * shape_of_rank("page_table", table, 2)[1]
