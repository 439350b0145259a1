"""FlashMLA's dense prefill: q, k and v of sequences that lie one behind the other."""

from __future__ import annotations

from typing import Any

from attn_mlir.api.flash_options import refuse_meaningful
from attn_mlir.calls import attention
from attn_mlir.errors import SpecError
from attn_mlir.masks import causal as causal_mask
from attn_mlir.masks import full
from attn_mlir.naming import renamed
from attn_mlir.runtime.kernel import DeviceChoice
from attn_mlir.runtime.scalars import flag, integer
from attn_mlir.runtime.tensors import shape_of

PACKED_RANK = 3
_attend = renamed(
    attention,
    scale="softmax_scale",
    cu_seqlens_q="cu_seqlens_qo",
    cu_seqlens_k="cu_seqlens_kv",
    max_seqlen_q="max_seqlen_qo",
    max_seqlen_k="max_seqlen_kv",
)


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_qo: Any,
    cu_seqlens_kv: Any,
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
    *,
    device: DeviceChoice = None,
    stream: object = None,
) -> tuple[Any, Any]:
    """As FlashMLA's `flash_attn_varlen_func`, on top of `attn_mlir.attention`.

    What differs: further head sizes and f16; `deterministic` may be True; there is no backward pass.

    Args:
      q: [total_q, num_heads_q, head_dim_qk], bf16 or f16; head_dim_qk is 192 or 128 as a rule.
      k: [total_k, num_heads_kv, head_dim_qk]; v: [total_k, num_heads_kv, head_dim_v].
      cu_seqlens_qo, cu_seqlens_kv: [batch + 1] i32, where sequences begin and the last one ends.
      max_seqlen_qo, max_seqlen_kv: no sequence is longer.
      dropout_p: 0.
      softmax_scale: of the scores; 1 / sqrt(head_dim_qk) where it is None.
      causal: query i of sq sees keys up to i + sk - sq.
      deterministic: says nothing: the same call gives the same bits.
      is_varlen: says nothing: False promises that all sequences are equally long.
      device, stream: see `attn_mlir.attention`.

    Returns:
      (out, lse): [total_q, num_heads_q, head_dim_v] in q's dtype, and [total_q, num_heads_q] f32, natural
      logarithm, of which the positions lie one behind the other. For a query that sees no key out is 0
      and lse -inf.

    Raises:
      SpecError: an argument is wrong or has no kernel, or one of q, k and v requires a gradient.
    """
    refuse_meaningful(
        "flash_attn_varlen_func", {"dropout_p": dropout_p, "deterministic": deterministic}
    )
    flag("is_varlen", is_varlen)
    out, lse = _attend(
        q,
        k,
        v,
        mask=causal_mask() if flag("causal", causal) else full(),
        scale=softmax_scale,
        return_lse=True,
        cu_seqlens_q=cu_seqlens_qo,
        cu_seqlens_k=cu_seqlens_kv,
        max_seqlen_q=max_seqlen_qo,
        max_seqlen_k=max_seqlen_kv,
        device=device,
        stream=stream,
    )
    return out, lse.swapaxes(0, 1)


def flash_attn_varlen_qkvpacked_func(
    qkv: Any,
    cu_seqlens: Any,
    max_seqlen: int,
    head_dim_qk: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
    *,
    device: DeviceChoice = None,
    stream: object = None,
) -> tuple[Any, Any]:
    """As FlashMLA's `flash_attn_varlen_qkvpacked_func`: q, k and v are views of one array, not copies.

    Args:
      qkv: [total, num_heads, 2 head_dim_qk + head_dim_v]: the columns of q, then those of k and of v.
      cu_seqlens, max_seqlen: of queries and keys, as of `flash_attn_varlen_func`.
      head_dim_qk: columns of q.
      dropout_p, softmax_scale, causal, deterministic, is_varlen, device, stream: as of
        `flash_attn_varlen_func`.

    Returns:
      (out, lse), as `flash_attn_varlen_func`.

    Raises:
      SpecError: as `flash_attn_varlen_func`.
    """
    columns = _columns("qkv", qkv, "2 head_dim_qk + head_dim_v")
    size = integer("head_dim_qk", head_dim_qk, 1, (columns - 1) // 2)
    return flash_attn_varlen_func(
        qkv[..., :size],
        qkv[..., size : 2 * size],
        qkv[..., 2 * size :],
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        dropout_p,
        softmax_scale,
        causal,
        deterministic,
        is_varlen,
        device=device,
        stream=stream,
    )


def flash_attn_varlen_kvpacked_func(
    q: Any,
    kv: Any,
    cu_seqlens_qo: Any,
    cu_seqlens_kv: Any,
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    head_dim_qk: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
    *,
    device: DeviceChoice = None,
    stream: object = None,
) -> tuple[Any, Any]:
    """As FlashMLA's `flash_attn_varlen_kvpacked_func`: k and v are views of one array, not copies.

    Args:
      q, cu_seqlens_qo, cu_seqlens_kv, max_seqlen_qo, max_seqlen_kv: as of `flash_attn_varlen_func`.
      kv: [total_k, num_heads_kv, head_dim_qk + head_dim_v]: the columns of k, then those of v.
      head_dim_qk: columns of k.
      dropout_p, softmax_scale, causal, deterministic, is_varlen, device, stream: as of
        `flash_attn_varlen_func`.

    Returns:
      (out, lse), as `flash_attn_varlen_func`.

    Raises:
      SpecError: as `flash_attn_varlen_func`.
    """
    columns = _columns("kv", kv, "head_dim_qk + head_dim_v")
    size = integer("head_dim_qk", head_dim_qk, 1, columns - 1)
    return flash_attn_varlen_func(
        q,
        kv[..., :size],
        kv[..., size:],
        cu_seqlens_qo,
        cu_seqlens_kv,
        max_seqlen_qo,
        max_seqlen_kv,
        dropout_p,
        softmax_scale,
        causal,
        deterministic,
        is_varlen,
        device=device,
        stream=stream,
    )


def _columns(name: str, packed: Any, wanted: str) -> int:
    """The columns of a packed array.

    Raises:
      SpecError: another rank.
    """
    shape = shape_of(packed, name)
    if len(shape) != PACKED_RANK:
        raise SpecError(f"{name} must be [total, heads, {wanted}], got {list(shape)}")
    return shape[-1]
