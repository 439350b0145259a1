"""PyTorch's operators of flash attention, backward: schemas of PyTorch 2.13."""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir.adapters import ANYTHING, adapter, neutral
from attn_mlir.aten.forward import operands, scores_on_host
from attn_mlir.aten.table import BACKWARD, GRADIENT, LENGTHS, NEUTRAL
from attn_mlir.calls import attention_backward
from attn_mlir.naming import renamed
from attn_mlir.pytorch.readable import padded

torch: Any = importlib.import_module("torch")

Gradients = tuple[Any, ...]
DENSE = {
    **NEUTRAL,
    **neutral("cum_seq_q cum_seq_k", None, instead="_flash_attention_backward takes it"),
    **neutral("max_q max_k", ANYTHING, instead="tensors say how long they are"),
}  # of operators whose sequences have one length

_renamed = renamed(attention_backward, o="out", lse="logsumexp", do="grad_out")


def _attention_backward(*tensors: Any, **options: Any) -> Any:
    """With the same bits every time where PyTorch is asked for these."""
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    return _renamed(*tensors, deterministic=is_deterministic, **options)


@adapter(NEUTRAL, f"{GRADIENT} {LENGTHS} dropout_p is_causal rng_state unused", options=BACKWARD)
def flash_attention_backward(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, **options: Any
) -> Gradients:
    """As `aten::_flash_attention_backward`: the gradients of query, key and value.

    Args:
      grad_out, out: [total, heads, head_dim] with `cum_seq_q`, else [batch, sq, heads, head_dim].
      query, key, value: as in the call of `flash_attention_forward`.
      logsumexp: [heads, total] or [batch, heads, sq] f32.

    Raises:
      SpecError: an argument is wrong or has no kernel.
      TargetError: the device has no kernels of gradients.
    """
    tensors = operands(query=query, key=key, value=value, out=out, logsumexp=logsumexp)
    (gradient,) = operands(grad_out=grad_out)
    found = BACKWARD.call(_attention_backward, *tensors, gradient, given=options)
    return found.dq, found.dk, found.dv


@adapter(DENSE, f"{GRADIENT} {LENGTHS} dropout_p is_causal philox_seed philox_offset")
def scaled_dot_product_flash_attention_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Gradients:
    """As `aten::_scaled_dot_product_flash_attention_backward`.

    Args:
      grad_out, query, key, value, out: [batch, heads, sequence, head_dim].
      others: as of `flash_attention_backward`.
    """
    tensors = (x.transpose(1, 2) for x in (grad_out, query, key, value, out))
    lengths = dict.fromkeys(LENGTHS.split())
    gradients = flash_attention_backward(
        *tensors, logsumexp, **lengths, is_causal=is_causal, scale=scale
    )
    return tuple(x.transpose(1, 2) for x in gradients)


@adapter(DENSE, f"{GRADIENT} dropout_p is_causal")
def scaled_dot_product_flash_attention_for_cpu_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Gradients:
    """As `aten::_scaled_dot_product_flash_attention_for_cpu_backward`: not that of the mask.

    Args:
      others: as of `scaled_dot_product_flash_attention_for_cpu`.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    named = operands(query=query, key=key, value=value, out=out)
    *tensors, do = (padded(x).transpose(1, 2) for x in (*named, *operands(grad_out=grad_out)))
    scores = scores_on_host(query, key, is_causal, attn_mask, scale)
    found = _attention_backward(*tensors, *operands(logsumexp=logsumexp), do, **scores)
    gradients = zip((found.dq, found.dk, found.dv), named, strict=False)
    return tuple(x.transpose(1, 2)[..., : of.shape[3]] for x, of in gradients)
