"""FlashMLA's dense prefill: q, k and v of sequences that lie one behind the other."""

from __future__ import annotations

from typing import Any

from attn_mlir.adapters import adapter
from attn_mlir.calls import attention
from attn_mlir.errors import SpecError
from attn_mlir.flash_mla.table import NEUTRAL, OF_PREFILL
from attn_mlir.masks import causal as causal_mask
from attn_mlir.masks import full
from attn_mlir.naming import renamed
from attn_mlir.runtime.call.scalars import flag, integer
from attn_mlir.runtime.call.tensors import shape_of
from attn_mlir.runtime.kernel import DeviceChoice

PACKED_RANK = 3
_attend = renamed(
    attention,
    scale="softmax_scale",
    cu_seqlens_q="cu_seqlens_qo",
    cu_seqlens_k="cu_seqlens_kv",
    max_seqlen_q="max_seqlen_qo",
    max_seqlen_k="max_seqlen_kv",
)


def attend(
    operands: tuple[Any, Any, Any],
    offsets: tuple[Any, Any],
    longest: tuple[Any, Any],
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    device: DeviceChoice = None,
    stream: object = None,
) -> tuple[Any, Any]:
    """The call of `attention` for all functions of dense prefill.

    Args:
      operands: q, k and v.
      offsets: cu_seqlens_qo and cu_seqlens_kv; longest: max_seqlen_qo and max_seqlen_kv.
      softmax_scale: of the scores; 1 / sqrt(head_dim_qk) where it is None.
      causal: query i of sq sees keys up to i + sk - sq.
      device, stream: see `attn_mlir.attention`.

    Returns:
      (out, lse): [total_q, num_heads_q, head_dim_v] in q's dtype, and [total_q, num_heads_q] f32,
      natural logarithm, of which the positions lie one behind the other. For a query that sees no
      key out is 0 and lse -inf.

    Raises:
      SpecError: an argument is wrong or has no kernel, or one of q, k and v requires a gradient.
    """
    out, lse = _attend(
        *operands,
        mask=causal_mask() if flag("causal", causal) else full(),
        scale=softmax_scale,
        return_lse=True,
        cu_seqlens_q=offsets[0],
        cu_seqlens_k=offsets[1],
        max_seqlen_q=longest[0],
        max_seqlen_k=longest[1],
        device=device,
        stream=stream,
    )
    return out, lse.swapaxes(0, 1)


LENGTHS = "cu_seqlens_qo cu_seqlens_kv max_seqlen_qo max_seqlen_kv"


@adapter(NEUTRAL, f"q k v {LENGTHS} {OF_PREFILL}", options=attend)
def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_qo: Any,
    cu_seqlens_kv: Any,
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    **options: Any,
) -> tuple[Any, Any]:
    """As FlashMLA's `flash_attn_varlen_func`, on top of `attn_mlir.attention`.

    What differs: further head sizes and f16; there is no backward pass.

    Args:
      q: [total_q, num_heads_q, head_dim_qk], bf16 or f16; head_dim_qk is 192 or 128 as a rule.
      k: [total_k, num_heads_kv, head_dim_qk]; v: [total_k, num_heads_kv, head_dim_v].
      cu_seqlens_qo, cu_seqlens_kv: [batch + 1] i32, where sequences begin and the last one ends.
      max_seqlen_qo, max_seqlen_kv: no sequence is longer.
      options: see `attend`.

    Returns:
      (out, lse), as `attend`.

    Raises:
      SpecError: an argument is wrong or has no kernel, or one of q, k and v requires a gradient.
    """
    longest = (max_seqlen_qo, max_seqlen_kv)
    return attend((q, k, v), (cu_seqlens_qo, cu_seqlens_kv), longest, **options)


@adapter(NEUTRAL, f"qkv cu_seqlens max_seqlen head_dim_qk {OF_PREFILL}", options=attend)
def flash_attn_varlen_qkvpacked_func(
    qkv: Any, cu_seqlens: Any, max_seqlen: int, head_dim_qk: int, **options: Any
) -> tuple[Any, Any]:
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
    parts = (qkv[..., :size], qkv[..., size : 2 * size], qkv[..., 2 * size :])
    return attend(parts, (cu_seqlens, cu_seqlens), (max_seqlen, max_seqlen), **options)


@adapter(NEUTRAL, f"q kv {LENGTHS} head_dim_qk {OF_PREFILL}", options=attend)
def flash_attn_varlen_kvpacked_func(
    q: Any,
    kv: Any,
    cu_seqlens_qo: Any,
    cu_seqlens_kv: Any,
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    head_dim_qk: int,
    **options: Any,
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
    parts = (q, kv[..., :size], kv[..., size:])
    offsets, longest = (cu_seqlens_qo, cu_seqlens_kv), (max_seqlen_qo, max_seqlen_kv)
    return attend(parts, offsets, longest, **options)


def _columns(name: str, packed: Any, wanted: str) -> int:
    """The columns of a packed array.

    Raises:
      SpecError: another rank.
    """
    shape = shape_of(packed, name)
    if len(shape) != PACKED_RANK:
        raise SpecError(f"{name} must be [total, heads, {wanted}], got {list(shape)}")
    return shape[-1]
