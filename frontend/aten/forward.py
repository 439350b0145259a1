"""PyTorch's operators of flash attention, forward: schemas of PyTorch 2.13.

FlashAttention's functions compute them, under other names. LSE is in natural logarithms and dense.
"""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir.adapters import adapter
from attn_mlir.aten.table import FORWARD, LENGTHS, NEUTRAL, OF_FORWARD, OPERANDS
from attn_mlir.calls import attention
from attn_mlir.errors import AttnError
from attn_mlir.flash import flash_attn_func, flash_attn_varlen_func
from attn_mlir.masks import causal, full
from attn_mlir.mods import causal_from_top
from attn_mlir.pytorch.elements import added, visible
from attn_mlir.pytorch.readable import padded, readable
from attn_mlir.pytorch.sharded import in_force

torch: Any = importlib.import_module("torch")


@adapter(NEUTRAL, f"{OPERANDS} {OF_FORWARD}")
def scaled_dot_product_flash_attention(
    query: Any,
    key: Any,
    value: Any,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """As `aten::_scaled_dot_product_flash_attention`.

    Args:
      query: [batch, heads, sq, head_dim]; key and value: [batch, kv_heads, sk, head_dim].
      is_causal: the last query sees the last key; PyTorch asks for it where sq = sk.

    Returns:
      O in the layout of query, LSE [batch, heads, sq] f32, no offsets, sq and sk, and the state of
      dropout.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    _check_whole()
    q, k, v = (x.transpose(1, 2) for x in operands(query=query, key=key, value=value))
    out = torch.empty_like(query)
    _, lse = flash_attn_func(
        q, k, v, causal=is_causal, softmax_scale=scale, out=out.transpose(1, 2), return_lse=True
    )
    return out, lse, None, None, query.shape[2], key.shape[2], *_random(query)


@adapter(NEUTRAL, f"{OPERANDS} {LENGTHS} {OF_FORWARD}", options=FORWARD)
def flash_attention_forward(query: Any, key: Any, value: Any, **options: Any) -> tuple[Any, ...]:
    """As `aten::_flash_attention_forward`, which `varlen_attn` calls.

    Args:
      query: [total, heads, head_dim] with `cum_seq_q`, else [batch, sq, heads, head_dim].
      key, value: likewise; with `block_table` [pages, page, kv_heads, head_dim].
      options: see `flash_attn_varlen_func` of `attn_mlir.flash`.

    Returns:
      O, LSE [heads, total] or [batch, heads, sq] f32, and the state of dropout.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    o, lse = _of_sequences(query, key, value, options)
    return o, lse, *_random(query)


@adapter(NEUTRAL, f"out {OPERANDS} {LENGTHS} {OF_FORWARD}", options=FORWARD)
def flash_attention_forward_no_dropout_inplace(
    out: Any, query: Any, key: Any, value: Any, **options: Any
) -> Any:
    """As `aten::_flash_attention_forward_no_dropout_inplace`.

    Args:
      out: memory for O.
      others: as of `flash_attention_forward`.

    Returns:
      LSE.
    """
    return _of_sequences(query, key, value, options, out=out)[1]


@adapter(NEUTRAL, f"{OPERANDS} dropout_p is_causal")
def scaled_dot_product_flash_attention_for_cpu(
    query: Any,
    key: Any,
    value: Any,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> tuple[Any, Any]:
    """As `aten::_scaled_dot_product_flash_attention_for_cpu`, which has masks.

    Args:
      query: [batch, heads, sq, head_dim]; key and value: [batch, kv_heads, sk, head_dim].
      is_causal: the first query sees the first key.
      attn_mask: [sq or 1, sk or 1], or [batch or 1, heads or 1, sq or 1, sk or 1]: bool, or added
        to the scores.

    Returns:
      O and LSE [batch, heads, sq] f32.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    _check_whole()
    tensors = operands(query=query, key=key, value=value)
    q, k, v = (padded(x).transpose(1, 2) for x in tensors)
    scores = scores_on_host(query, key, is_causal, attn_mask, scale)
    o, lse = attention(q, k, v, return_lse=True, **scores)
    return o[..., : value.shape[3]].transpose(1, 2), lse


def scores_on_host(
    query: Any, key: Any, is_causal: bool, attn_mask: Any, scale: float | None
) -> dict[str, Any]:
    """The scores of `scaled_dot_product_flash_attention_for_cpu` as options of `attention`."""
    is_square = query.shape[2] == key.shape[2]
    options: dict[str, Any] = {
        "mask": causal() if is_causal and is_square else full(),
        "scale": query.shape[3] ** -0.5 if scale is None else scale,
    }
    if is_causal and not is_square:
        options["mask_mod"] = causal_from_top
    if attn_mask is not None:
        mask = attn_mask.detach()[(None,) * (4 - attn_mask.dim())]
        is_bool = mask.dtype == torch.bool
        options["mask_mod" if is_bool else "score_mod"] = visible(mask) if is_bool else added(mask)
    return options


def operands(**tensors: Any) -> tuple[Any, ...]:
    """Tensors of an operator as kernels read them; gradients are PyTorch's concern."""
    return tuple(readable(name, tensor.detach()) for name, tensor in tensors.items())


def _of_sequences(query: Any, key: Any, value: Any, given: Any, **others: Any) -> tuple[Any, Any]:
    """O and LSE of a call with FlashAttention's options under PyTorch's names."""
    _check_whole()
    tensors = operands(query=query, key=key, value=value)
    return FORWARD.call(flash_attn_varlen_func, *tensors, given=given, return_lse=True, **others)


def _check_whole() -> None:
    """Refuses calls inside of `context_parallel`: the operator cannot tell a shard from a sequence.

    Raises:
      AttnError: the sequence is sharded. It is no `SpecError`, because after a `SpecError`
        PyTorch's kernel would compute the shard as if it were the sequence.
    """
    if in_force():
        raise AttnError(
            "the sequence is sharded by context_parallel, and this call did not come through "
            "torch.nn.functional.scaled_dot_product_attention: call that by its full name"
        )


def _random(query: Any) -> tuple[Any, Any, Any]:
    """The state of a generator, an unused tensor and a mask of dropout, none of which is read."""
    state = torch.zeros(2, dtype=torch.uint64, device=query.device)
    return state, state.new_zeros(()), query.new_empty(0)
