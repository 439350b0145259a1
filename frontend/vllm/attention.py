"""Attention of a batch of vLLM's requests over their blocks, by tensors alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from attn_mlir.errors import SpecError, shown
from attn_mlir.flash import flash_attn_varlen_func
from attn_mlir.flash.lengths import shape_of_rank
from attn_mlir.flash.serving import CACHES, NARROW_CACHES
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import as_float, integer
from attn_mlir.runtime.call.tensors import shape_of
from attn_mlir.runtime.kernel import DeviceChoice
from attn_mlir.vllm.caches import ENCODER_TYPES, cache_scales, cache_views

_NAMES = {
    "q": "query", "out": "output", "cu_seqlens_q": "query_start_loc",
    "max_seqlen_q": "max_query_len", "softmax_scale": "scale", "window_size": "sliding_window",
    "softcap": "logits_soft_cap", "s_aux": "sinks",
}  # fmt: skip
_attend_cache = renamed(
    flash_attn_varlen_func, **_NAMES, k="kv_cache", v="kv_cache", seqused_k="seq_lens",
    k_descale="k_scale", v_descale="v_scale",
)  # fmt: skip
_attend_new = renamed(
    flash_attn_varlen_func, **_NAMES, k="key", v="value", cu_seqlens_k="query_start_loc",
    max_seqlen_k="max_query_len",
)  # fmt: skip

NOT_OFFERED = {
    "mm_req_doc_ranges": "images that see each other inside causal text",
    "rswa_prefix_lens": "windows behind a prefix that all see",
    "dcp_local_seq_lens": "keys of a sequence on several ranks",
}  # fields of `CommonAttentionMetadata`


@dataclass
class AttnMlirMetadata:
    """A batch of requests, in tensors of vLLM's, whose addresses graphs keep.

    Attributes:
      num_actual_tokens: of the batch without padding.
      query_start_loc: [requests + 1] i32.
      seq_lens: [requests] i32, keys of each request, the new ones included.
      block_table: [requests, columns] i32, with columns for `max_seq_len` keys.
      slot_mapping: [tokens] i64.
      max_query_len, max_seq_len: no request has more queries or keys.
      block_size: keys of a block; 0 without a cache.
      causal: whether a query sees no key behind it.
    """

    num_actual_tokens: int
    query_start_loc: Any
    seq_lens: Any
    block_table: Any
    slot_mapping: Any
    max_query_len: int
    max_seq_len: int
    block_size: int
    causal: bool = True

    @classmethod
    def of(cls, common: Any, block_size: int, *, common_prefix_len: int = 0) -> AttnMlirMetadata:
        """The metadata of a batch; no tensor is copied or read.

        Args:
          common: vLLM's `CommonAttentionMetadata`.
          block_size: keys of a block of this layer's kernels; 0 without a cache.
          common_prefix_len: vLLM's, which is 0: cascade attention is not offered.

        Raises:
          SpecError: names what is not offered.
        """
        if common_prefix_len:
            raise SpecError(f"common_prefix_len must be 0: no cascade, got {common_prefix_len}")
        for name, meaning in NOT_OFFERED.items():
            if getattr(common, name, None) is not None:
                raise SpecError(f"{name} must be None: {meaning} are not offered")
        if not isinstance(common.causal, bool):
            raise SpecError("causal must be True or False: one mask serves all requests of a call")
        for name in ("num_actual_tokens", "max_query_len", "max_seq_len"):
            integer(name, getattr(common, name))
        for name in ("query_start_loc", "seq_lens"):
            shape_of_rank(name, getattr(common, name), 1)
        if block_size:
            shape_of_rank("block_table_tensor", common.block_table_tensor, 2)
        return cls(
            common.num_actual_tokens,
            common.query_start_loc,
            common.seq_lens,
            _columns(common.block_table_tensor, common.max_seq_len, block_size),
            common.slot_mapping,
            common.max_query_len,
            common.max_seq_len,
            block_size,
            common.causal,
        )

    def with_blocks(self, block_table: Any, slot_mapping: Any) -> AttnMlirMetadata:
        """The metadata with blocks of other layers."""
        table = _columns(block_table, self.max_seq_len, self.block_size)
        return replace(self, block_table=table, slot_mapping=slot_mapping)


def _columns(block_table: Any, max_seq_len: int, block_size: int) -> Any:
    """The columns of a table that sequences reach into: parts of the keys go by their number."""
    return block_table[:, : -(-max_seq_len // block_size)] if block_size else block_table


@dataclass(frozen=True)
class Scores:
    """Changes of scores in a layer, by the names of vLLM's `AttentionImpl`.

    Attributes:
      scale: multiplies scores.
      sliding_window: keys that a query sees, itself among them; None for all.
      logits_soft_cap: None or 0 for none.
      alibi_slopes: [heads] f32, or None.
      sinks: [heads] f32, or None.
    """

    scale: float
    sliding_window: int | None = None
    logits_soft_cap: float | None = None
    alibi_slopes: Any = None
    sinks: Any = None

    def options(self, *, is_causal: bool) -> dict[str, Any]:
        """The options of FlashAttention's functions."""
        window = (-1, -1)
        if self.sliding_window is not None:
            before = self.sliding_window - 1
            window = (before, 0 if is_causal else before)
        return {
            "softmax_scale": self.scale,
            "causal": is_causal,
            "window_size": window,
            "softcap": self.logits_soft_cap or 0.0,
            "alibi_slopes": self.alibi_slopes,
            "s_aux": self.sinks,
        }


def attend(
    query: Any,
    kv_cache: Any,
    metadata: AttnMlirMetadata,
    output: Any,
    scores: Scores,
    *,
    kv_cache_dtype: str = "auto",
    k_scale: Any = None,
    v_scale: Any = None,
    device: DeviceChoice = None,
) -> None:
    """Attention of the tokens of a batch over their requests' blocks, into `output`.

    Args:
      query, output: [tokens or more, heads, head_dim]; those past the batch are left alone.
      kv_cache, kv_cache_dtype: as of `cache_views`; the new tokens are in it.
      scores: of the layer.
      k_scale, v_scale: of the layer, for pools of 8 bits.
      device: see `attention`.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    count = metadata.num_actual_tokens
    keys, values = cache_views(kv_cache, shape_of(query, "query")[-1], kv_cache_dtype)
    k_descale, v_descale = cache_scales(kv_cache_dtype, k_scale, v_scale)
    _attend_cache(
        query[:count],
        keys,
        values,
        cu_seqlens_q=metadata.query_start_loc,
        max_seqlen_q=metadata.max_query_len,
        seqused_k=metadata.seq_lens,
        block_table=metadata.block_table,
        out=output[:count],
        num_splits=0,
        k_descale=k_descale,
        v_descale=v_descale,
        device=device,
        **scores.options(is_causal=metadata.causal),
    )


def attend_without_cache(
    query: Any,
    key: Any,
    value: Any,
    metadata: AttnMlirMetadata,
    output: Any,
    scores: Scores,
    *,
    device: DeviceChoice = None,
) -> None:
    """Attention of an encoder, whose requests have as many keys as queries, into `output`.

    Args:
      query, key, value, output: [tokens or more, heads or kv_heads, head_dim].
      metadata, scores, device: as of `attend`.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    count, offsets = metadata.num_actual_tokens, metadata.query_start_loc
    _attend_new(
        *(x[:count] for x in (query, key, value)),
        cu_seqlens_q=offsets,
        cu_seqlens_k=offsets,
        max_seqlen_q=metadata.max_query_len,
        max_seqlen_k=metadata.max_query_len,
        out=output[:count],
        device=device,
        **scores.options(is_causal=False),
    )


def check_layer(
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    scores: Scores,
    attn_type: str,
    kv_cache_dtype: str,
) -> None:
    """Refuses a layer that no kernel serves.

    Raises:
      SpecError: names what is not offered.
    """
    integer("num_heads", num_heads, 1)
    integer("num_kv_heads", num_kv_heads, 1)
    if num_heads % num_kv_heads:
        raise SpecError(f"num_kv_heads must divide num_heads {num_heads}, got {num_kv_heads}")
    if attn_type not in ("decoder", *ENCODER_TYPES):
        raise SpecError(f"attn_type must be decoder, encoder or encoder_only, got {attn_type}")
    if kv_cache_dtype not in CACHES:
        got = shown(kv_cache_dtype, 40)
        raise SpecError(f"kv_cache_dtype must be {', '.join(CACHES)}, got {got}")
    if (reason := head_size_refusal(head_size, kv_cache_dtype)) is not None:
        raise SpecError(reason)
    if scores.sliding_window is not None:
        integer("sliding_window", scores.sliding_window, 1, also=" or None")
    cap = 0.0 if scores.logits_soft_cap is None else as_float(scores.logits_soft_cap)
    if cap is None or not cap >= 0:
        got = shown(scores.logits_soft_cap, 40)
        raise SpecError(f"logits_soft_cap must be 0 or more, or None, got {got}")
    for name in ("alibi_slopes", "sinks"):
        value = getattr(scores, name)
        if value is not None and (found := list(shape_of(value, name))) != [num_heads]:
            raise SpecError(f"{name} must be [{num_heads}], got {found}")


def head_size_refusal(head_size: int, kv_cache_dtype: str | None) -> str | None:
    """Why pools with this head size are not read where they lie; None if they are."""
    step = 16 if kv_cache_dtype in NARROW_CACHES else 8
    if head_size % step or not 0 < head_size <= 256:
        return f"head_size must be a multiple of {step} up to 256, got {head_size}"
    return None
