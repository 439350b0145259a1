"""FlashMLA's dense prefill: q, k and v of sequences that lie one behind the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_mlir.adapters import Options, adapter
from attn_mlir.calls import attention
from attn_mlir.errors import SpecError
from attn_mlir.flash_mla.table import NEUTRAL, OF_PREFILL, PACKED_PREFILL, PREFILL
from attn_mlir.runtime.call.scalars import integer
from attn_mlir.runtime.call.tensors import shape_of

PACKED_RANK = 3


def attend(
    operands: tuple[Any, Any, Any], given: Mapping[str, Any], options: Options
) -> tuple[Any, Any]:
    """The call of `attention` for all functions of dense prefill.

    Args:
      operands: q, k and v.
      given: the lengths and options of the call by name, those of `options`:
      softmax_scale: of the scores; 1 / sqrt(head_dim_qk) where it is None.
      causal: query i of sq sees keys up to i + sk - sq.
      device, stream: see `attn_mlir.attention`.

    Returns:
      (out, lse): [total_q, num_heads_q, head_dim_v] in q's dtype, and [total_q, num_heads_q] f32,
      natural logarithm, of which the positions lie one behind the other. For a query that sees no
      key out is 0 and lse -inf.

    Raises:
      SpecError: an argument is wrong or has no kernel, or a gradient that is required has none.
    """
    out, lse = options.call(attention, *operands, given=given, return_lse=True)
    return out, lse.swapaxes(0, 1)


LENGTHS = "cu_seqlens_qo cu_seqlens_kv max_seqlen_qo max_seqlen_kv"


@adapter(NEUTRAL, f"q k v {LENGTHS} {OF_PREFILL}", options=PREFILL)
def flash_attn_varlen_func(q: Any, k: Any, v: Any, **options: Any) -> tuple[Any, Any]:
    """As FlashMLA's `flash_attn_varlen_func`, on top of `attn_mlir.attention`.

    Differences: further head sizes and f16; the largest have no backward pass.

    Args:
      q: [total_q, num_heads_q, head_dim_qk], bf16 or f16; head_dim_qk is 192 or 128 as a rule.
      k: [total_k, num_heads_kv, head_dim_qk]; v: [total_k, num_heads_kv, head_dim_v].
      cu_seqlens_qo, cu_seqlens_kv: [batch + 1] i32, where sequences begin and the last one ends.
      max_seqlen_qo, max_seqlen_kv: no sequence is longer.
      options: see `attend`.

    Returns:
      (out, lse), as `attend`.

    Raises:
      SpecError: an argument is wrong or has no kernel, or a gradient that is required has none.
    """
    return attend((q, k, v), options, PREFILL)


@adapter(NEUTRAL, f"qkv cu_seqlens max_seqlen head_dim_qk {OF_PREFILL}", options=PACKED_PREFILL)
def flash_attn_varlen_qkvpacked_func(qkv: Any, head_dim_qk: int, **options: Any) -> tuple[Any, Any]:
    """As FlashMLA's `flash_attn_varlen_qkvpacked_func`: q, k and v are views of one array, not
    copies.

    Args:
      qkv: [total, num_heads, 2 head_dim_qk + head_dim_v]: the columns of q, then those of k and of
        v.
      cu_seqlens, max_seqlen: of queries and keys, as of `flash_attn_varlen_func`.
      head_dim_qk: columns of q.
      options: see `attend`.

    Returns:
      (out, lse), as `attend`.

    Raises:
      SpecError: as `flash_attn_varlen_func`.
    """
    columns = _columns("qkv", qkv, "2 head_dim_qk + head_dim_v")
    size = integer("head_dim_qk", head_dim_qk, 1, (columns - 1) // 2)
    operands = (qkv[..., :size], qkv[..., size : 2 * size], qkv[..., 2 * size :])
    return attend(operands, options, PACKED_PREFILL)


@adapter(NEUTRAL, f"q kv {LENGTHS} head_dim_qk {OF_PREFILL}", options=PREFILL)
def flash_attn_varlen_kvpacked_func(
    q: Any, kv: Any, head_dim_qk: int, **options: Any
) -> tuple[Any, Any]:
    """As FlashMLA's `flash_attn_varlen_kvpacked_func`: k and v are views of one array, not copies.

    Args:
      q, cu_seqlens_qo, cu_seqlens_kv, max_seqlen_qo, max_seqlen_kv: as of `flash_attn_varlen_func`.
      kv: [total_k, num_heads_kv, head_dim_qk + head_dim_v]: the columns of k, then those of v.
      head_dim_qk: columns of k.
      options: see `attend`.

    Returns:
      (out, lse), as `attend`.

    Raises:
      SpecError: as `flash_attn_varlen_func`.
    """
    columns = _columns("kv", kv, "head_dim_qk + head_dim_v")
    size = integer("head_dim_qk", head_dim_qk, 1, columns - 1)
    return attend((q, kv[..., :size], kv[..., size:]), options, PREFILL)


def _columns(name: str, packed: Any, columns: str) -> int:
    """The columns of a packed array.

    Raises:
      SpecError: another rank.
    """
    shape = shape_of(packed, name)
    if len(shape) != PACKED_RANK:
        raise SpecError(f"{name} must be [total, heads, {columns}], got {list(shape)}")
    return shape[-1]
