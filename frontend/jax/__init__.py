"""Attention for jax: inside and outside of `jax.jit`, `jax.vmap` and `jax.grad`.

    from attn_mlir.jax import dot_product_attention  # in the place of jax.nn.dot_product_attention

Operands are bfloat16 or float16. Arrays on a GPU are computed with there, by a callback with the
buffers of XLA and its stream; arrays on the host by the emulator. jax is imported by the first
call.
"""

from __future__ import annotations

import inspect
from typing import Any

from attn_mlir.api.attention import attention as _of_memory
from attn_mlir.jax.dot_product import dot_product_attention
from attn_mlir.jax.host import BELOW, LEAST, implementation

__all__ = ["BELOW", "LEAST", "attention", "dot_product_attention"]


def attention(*arguments: Any, **options: Any) -> Any:
    """As `attn_mlir.attention`, for arrays of jax, which may be traced.

    Arrays among the arguments may be numpy's, or traced; everything else is known when jax traces
    the call. Modifiers may read arrays of jax, traced ones as well. Rows of no sequence are 0, and
    their LSE -inf.

    Gradients are those of `attention_backward`, of q, k, v, sinks and what `score_mod` reads. They
    have the same bits every time, unless `deterministic` is False, or is left out and a gradient of
    what `score_mod` reads is wanted.

    Under `jax.vmap` samples become part of the batch where every array has one and is mapped;
    otherwise kernels are launched for one sample after the other.

    Returns:
      O, with `return_lse` (O, LSE), as of `attn_mlir.attention`.

    Raises:
      SpecError: as of `attn_mlir.attention`; `out`, `device`, `stream`, `block_mask` or a cache.
      ImportError: jax is missing, or of another version.
    """
    return implementation().attention(*arguments, **options)


vars(attention)["__signature__"] = inspect.signature(_of_memory).replace(return_annotation=Any)
