"""FlashMLA's decoding: few queries over a paged latent cache, all of its rows or indexed ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from attn_mlir.adapters import adapter, check_needs
from attn_mlir.caches import ContiguousKV, PagedKV
from attn_mlir.calls import mla_decode
from attn_mlir.errors import SpecError, no_kernel, shown
from attn_mlir.flash_mla.row_numbers import in_one_page
from attn_mlir.flash_mla.table import DECODING, NEUTRAL, V_DIM, mask_of
from attn_mlir.latent_heads import one_behind_another, with_filled_heads
from attn_mlir.library import check_one_library
from attn_mlir.lse import mark_without_keys
from attn_mlir.masks import full
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import flag, integer
from attn_mlir.runtime.call.tensors import shape_of

MOST_COLUMNS = 576
RANKS = {"q": 4, "k_cache": 4, "indices": 3, "extra_k_cache": 4, "extra_indices_in_kvcache": 3}
EXTENTS = {
    "topk": (-1, "indices"),
    "extra_page_block_size": (1, "extra_k_cache"),
    "extra_topk": (-1, "extra_indices_in_kvcache"),
}  # that metadata keep of what may be None: axis and argument
NARROW_FORMATS = {MOST_COLUMNS: "v32", 512: "model1"}  # by head_dim
_decode = renamed(
    mla_decode,
    k="k_cache",
    k_pages="k_cache",
    page_table="block_table",
    seqused="cache_seqlens",
)
_NONE = "which are None"
_NO_CACHE = "is of the rows in extra_k_cache, which is None"
NEEDS = (
    ("topk_length", "indices", f"topk_length is of the lists in indices, {_NONE}"),
    ("extra_indices_in_kvcache", "extra_k_cache", f"extra_indices_in_kvcache {_NO_CACHE}"),
    ("extra_topk_length", "extra_k_cache", f"extra_topk_length {_NO_CACHE}"),
    ("extra_k_cache", "indices", f"extra_k_cache needs indices, {_NONE}"),
    (
        "extra_k_cache",
        "extra_indices_in_kvcache",
        f"extra_k_cache needs extra_indices_in_kvcache, {_NONE}",
    ),
)


@dataclass
class FlashMLASchedMeta:
    """The sizes that FlashMLA keeps between calls of equal sizes.

    Attributes:
      config: the sizes and options of the first call, by FlashMLA's names; None before it.
    """

    config: dict[str, object] | None = None

    def check(self, config: dict[str, object]) -> None:
        """Compares the sizes of a call with those of the first one, if there was one.

        Raises:
          SpecError: names what differs.
        """
        for name, was in (self.config or {}).items():
            if (got := config[name]) != was:
                raise SpecError(
                    f"tile_scheduler_metadata is of calls with {name} = {was}, got {got}: make "
                    "others with get_mla_metadata()"
                )


def get_mla_metadata(*arguments: Any, **options: Any) -> tuple[FlashMLASchedMeta, None]:
    """As FlashMLA's `get_mla_metadata`: metadata of no call yet, and None.

    Args:
      arguments, options: of older versions of FlashMLA; they are not looked at.
    """
    del arguments, options
    return FlashMLASchedMeta(), None


@adapter(
    NEUTRAL,
    "q k_cache block_table cache_seqlens head_dim_v tile_scheduler_metadata num_splits "
    "softmax_scale causal is_fp8_kvcache indices attn_sink extra_k_cache "
    "extra_indices_in_kvcache topk_length extra_topk_length",
    options=DECODING,
)
def flash_mla_with_kvcache(
    q: Any,
    k_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    head_dim_v: int,
    tile_scheduler_metadata: FlashMLASchedMeta,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    topk_length: Any = None,
    extra_topk_length: Any = None,
    **options: Any,
) -> tuple[Any, Any]:
    """As FlashMLA's `flash_mla_with_kvcache`, on top of `attn_mlir.mla_decode`.

    Differences: caches of 16 bits also with `indices`; `attn_sink` may be given without them; any
    number of entries; pages of further sizes; any number of heads, which are copied to a multiple
    of 8. What FlashMLA checks by assertions is refused by a `SpecError`.

    Args:
      q: [batch, seq_len_q, num_heads_q, head_dim], bf16 or f16; head_dim 576 or 512.
      k_cache: [num_blocks, page_block_size, 1, head_dim], of q's dtype. There may be rows between
        pages. Several heads, without `indices`, are that many launches. With `is_fp8_kvcache` 656
        bytes of
        u8, i8 or e4m3 for a row of 576 columns, 584 for one of 512: `v32` and `model1` of
          `pack_latent`.
      block_table: [batch, max_num_blocks_per_seq] i32; not looked at with `indices`, and may be
        None.
      cache_seqlens: [batch] i32, rows of each sequence, likewise.
      head_dim_v: 512.
      tile_scheduler_metadata: of `get_mla_metadata`, for calls of equal sizes.
      softmax_scale: of the scores; 1 / sqrt(head_dim) where it is None.
      causal: whether a query sees the rows up to its own alone; not with `indices`.
      is_fp8_kvcache: whether rows are stored in 8 bits, with `indices`; q is bf16 then.
      indices: [batch, seq_len_q, topk] i32, block x page_block_size + offset; -1, and any other
        number that is no row, does not count.
      attn_sink: [num_heads_q] f32, a logit per head.
      extra_k_cache: like k_cache, beside indices: further rows that queries attend to as well, in
        pages of their own size.
      extra_indices_in_kvcache: [batch, seq_len_q, extra_topk] i32, which of them, as `indices`.
      topk_length, extra_topk_length: [batch] i32, how many entries of each list of a sequence
        count.
      device, stream: see `attn_mlir.attention`.

    Returns:
      (out, softmax_lse): [batch, seq_len_q, num_heads_q, 512] in q's dtype, and [batch,
      num_heads_q, seq_len_q] f32, natural logarithm. For a query that sees no row out is 0 and
      softmax_lse +inf.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    indices, extra_k_cache, extra_indices_in_kvcache = (
        options.get(name) for name in ("indices", "extra_k_cache", "extra_indices_in_kvcache")
    )
    is_narrow = flag("is_fp8_kvcache", is_fp8_kvcache)
    if is_narrow and indices is None:
        raise SpecError(no_kernel("is_fp8_kvcache True", "it needs indices"))
    integer("head_dim_v", head_dim_v, V_DIM, V_DIM)
    if not isinstance(cast("object", tile_scheduler_metadata), FlashMLASchedMeta):
        raise SpecError(
            "tile_scheduler_metadata must be what get_mla_metadata returns first, got "
            f"{shown(tile_scheduler_metadata, 40)}"
        )
    mask = mask_of(causal)
    if indices is None and (block_table is None or cache_seqlens is None):
        raise SpecError("block_table and cache_seqlens must be given without indices")
    pools = {"indices": indices, "extra_k_cache": extra_k_cache}
    pools["extra_indices_in_kvcache"] = extra_indices_in_kvcache
    lists = {"topk_length": topk_length, "extra_topk_length": extra_topk_length}
    check_needs(pools | lists, NEEDS)
    if indices is not None and mask != full():
        raise SpecError("causal must be False with indices, which say what a query sees")
    tensors = {"q": q, "k_cache": k_cache} | {n: x for n, x in pools.items() if x is not None}
    shapes = {name: shape_of(x, name) for name, x in tensors.items()}
    for name, shape in shapes.items():
        if len(shape) != RANKS[name]:
            raise SpecError(f"{name} must have {RANKS[name]} dimensions, got {list(shape)}")
    batch, queries, heads, columns = shapes["q"]
    config: dict[str, object] = {"b": batch, "s_q": queries, "h_q": heads}
    config |= {"page_block_size": shapes["k_cache"][1], "h_k": shapes["k_cache"][2]}
    config |= {"causal": mask != full(), "is_fp8_kvcache": is_narrow}
    for name, (axis, argument) in EXTENTS.items():
        config[name] = shapes[argument][axis] if argument in shapes else None
    tile_scheduler_metadata.check(config)
    if options.get("softmax_scale") is None:
        options["softmax_scale"] = max(columns, 1) ** -0.5
    extra: dict[str, Any] = {}
    if indices is None:
        cache: PagedKV | ContiguousKV = PagedKV(k_cache, None, block_table, cache_seqlens)
        extra["mask"] = mask
    else:
        kv_format = None
        if is_narrow:
            kv_format = NARROW_FORMATS.get(columns, NARROW_FORMATS[MOST_COLUMNS])
            extra["kv_format"] = kv_format
        if kv_format != NARROW_FORMATS[V_DIM]:  # whose pages hold more than rows
            lists_of = (("k_cache", "indices"), ("extra_k_cache", "extra_indices_in_kvcache"))
            for pool, rows in lists_of:
                if pool in tensors:
                    numbered = in_one_page(
                        pool, tensors[pool], tensors[rows], options.get("stream")
                    )
                    options |= dict(zip((pool, rows), numbered, strict=True))
            k_cache, indices = options.pop("k_cache"), options["indices"]
            extra_indices_in_kvcache = options.get("extra_indices_in_kvcache")
        cache = ContiguousKV(k_cache, None, None)
        rows_of = {"topk_length": indices, "extra_topk_length": extra_indices_in_kvcache}
        for name, lengths in lists.items():
            if lengths is not None:
                extra[name] = _of_each_query(name, lengths, rows_of[name])
    sinks = options.pop("attn_sink", None)

    def decode(q: Any, attn_sink: Any) -> tuple[Any, ...]:
        given = options | {"attn_sink": attn_sink}
        return DECODING.call(_decode, q, cache, given=given, **extra)

    def attend(q: Any, attn_sink: Any) -> tuple[Any, ...]:
        return with_filled_heads(
            decode, q, attn_sink, axis=2, sinks_name="attn_sink", stream=options.get("stream")
        )

    kv_heads = shapes["k_cache"][2]
    if kv_heads > 1 and indices is None and not heads % kv_heads:
        results: list[tuple[Any, ...]] = []
        group = heads // kv_heads
        for head in range(kv_heads):  # a launch for each head of keys
            cache = PagedKV(k_cache[:, :, head : head + 1], None, block_table, cache_seqlens)
            own = slice(head * group, (head + 1) * group)
            results.append(attend(q[:, :, own], None if sinks is None else sinks[own]))
        out, lse = one_behind_another(results, (2, 1), options.get("stream"))
    else:
        out, lse = attend(q, sinks)
    tile_scheduler_metadata.config = config
    mark_without_keys(lse, options.get("stream"))
    return out, lse


def _of_each_query(name: str, lengths: Any, indices: Any) -> Any:
    """[batch] as [batch, seq_len_q], in the library of both arrays; None for lists without an
    entry.

    Raises:
      SpecError: lengths of another shape, dtype or library.
    """
    check_one_library({"lists": indices, name: lengths})
    shape, (batch, _, topk) = shape_of(lengths, name), indices.shape
    if shape != (batch,):
        raise SpecError(f"{name} must be [{batch}], got {list(shape)}")
    if (dtype := str(lengths.dtype).rpartition(".")[2]) != "int32":
        raise SpecError(f"{name} must be of int32, got {dtype}")
    return lengths[:, None] + 0 * indices[..., 0] if topk else None
