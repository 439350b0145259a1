"""Attention with the signature that `diffusers` calls its backends with."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from attn_mlir.adapters import ANYTHING, adapter, neutral
from attn_mlir.diffusers.parallel import in_parallel
from attn_mlir.errors import REFUSALS, SpecError
from attn_mlir.fallback import say_fallback
from attn_mlir.pytorch.jagged import is_nested
from attn_mlir.torch import sdpa_and_lse

torch: Any = importlib.import_module("torch")

PLAIN = (torch.Tensor, torch.nn.Parameter)  # classes of operands; subclasses are refused
NATIVE = "diffusers.models.attention_dispatch"
FLASH = "it is of the package's backends for FlashAttention"
TABLE = {
    **neutral("dropout_p", 0, instead="there is no dropout"),
    **neutral("window_size", (-1, -1), instead=f"{FLASH}, pass an attn_mask"),
    **neutral("softcap", 0, instead=FLASH),
    **neutral("return_attn_probs", False, instead="pass return_lse"),
    **neutral("deterministic", ANYTHING, instead="the same call gives the same bits"),
}
POSITIONS = (
    "query key value attn_mask dropout_p is_causal scale enable_gqa return_lse _parallel_config"
)
BY_NAME = "window_size softcap return_attn_probs deterministic"


@adapter(TABLE, POSITIONS, BY_NAME)
def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    _parallel_config: Any = None,
) -> Any:
    """Computes what the backend `native` of the package computes, and LSE in addition.

    Args:
      query: [batch, sq, heads, head_dim], bfloat16 or float16.
      key: [batch, sk, kv_heads, head_dim].
      value: [batch, sk, kv_heads, v_head_dim].
      attn_mask: bools, True for visible scores, or floats, which are added to the scores;
        [batch, sk], or broadcastable to [batch, heads, sq, sk].
      is_causal: whether query i sees only keys 0 ... i.
      scale: factor of the scores; head_dim^-0.5 by default.
      enable_gqa: whether kv_heads may be a divisor of heads.
      return_lse: also return LSE, [batch, sq, heads] in float32, natural logarithm.
      _parallel_config: the package's configuration of context parallelism; with rings, `attn_mask`
        is refused.

    Returns:
      O [batch, sq, heads, v_head_dim]; with `return_lse` also LSE.

    Raises:
      SpecError: an argument is wrong or has no kernel, such as dropout, windows or float32.
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        is_tensor = isinstance(x, torch.Tensor)
        if not is_tensor or (type(x) in PLAIN and x.dim() != 4):
            got = f"one of rank {x.dim()}" if is_tensor else type(x).__name__
            raise SpecError(
                f"{name} must be a tensor [batch, sequence, heads, head_dim], got {got}"
            )
    if attn_mask is not None and not is_nested(query, key, attn_mask):
        if getattr(attn_mask, "shape", None) == (query.shape[0], key.shape[1]):
            attn_mask = attn_mask[:, None, None]
    options = (attn_mask, is_causal, scale, enable_gqa, return_lse)
    if _parallel_config is not None:
        return in_parallel(query, key, value, *options, _parallel_config=_parallel_config)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    o, lse = sdpa_and_lse(q, k, v, *options)
    o = o.transpose(1, 2)
    return (o, lse.transpose(1, 2)) if return_lse else o


@functools.wraps(attention)
def attention_or_native(*arguments: Any, **options: Any) -> Any:
    """Calls `attention`, and the package's `native` backend if `attention` refuses the call.

    The log reports each reason once.

    Raises:
      SpecError: the refused call has an option that `native` does not have, such as a window or
        LSE.
    """
    try:
        return attention(*arguments, **options)
    except REFUSALS as error:
        native = importlib.import_module(NATIVE)._native_attention
        offered = inspect.signature(native).parameters
        if options.get("return_lse") or not options.keys() <= offered.keys():
            raise
        say_fallback("diffusers", str(error))
    return native(*arguments, **options)
