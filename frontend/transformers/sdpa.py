"""Layers whose call is refused go to the package's own `sdpa`: `register(fallback="sdpa")`."""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir.errors import REFUSALS
from attn_mlir.fallback import say_fallback
from attn_mlir.transformers.attention import attention_forward, without_mask
from attn_mlir.transformers.masks import VisibleKeys

host: Any = importlib.import_module("transformers.integrations.sdpa_attention")

# Options that the package's function refuses, or leaves out where it should not.
NOT_OF_SDPA = ("softcap", "s_aux", "cu_seq_lens_q", "cu_seq_lens_k", "output_attentions", "cache")


def attention_or_sdpa(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any
) -> tuple[Any, None]:
    """`attention_forward`, or the package's `sdpa` for a call that it refuses.

    The log says so once for each kind of layer and reason. Refusals while a graph is traced stay
    refusals, as do those of calls that `sdpa` would compute without one of their options.

    Raises:
      SpecError: such a call.
    """
    try:
        return attention_forward(module, query, key, value, attention_mask, **options)
    except REFUSALS as error:
        kept = (options.get(name) for name in NOT_OF_SDPA)
        if any(x is not None and x is not False for x in kept):
            raise
        say_fallback(type(module).__name__, str(error))
    window = options.pop("sliding_window", None)
    if attention_mask is None and window is not None:
        shape = (query.shape[0], 1, query.shape[2], key.shape[2])
        attention_mask = without_mask(module, shape, options.get("is_causal"), window)
    if isinstance(attention_mask, VisibleKeys):
        attention_mask = attention_mask.dense(query.device)
    return host.sdpa_attention_forward(module, query, key, value, attention_mask, **options)
