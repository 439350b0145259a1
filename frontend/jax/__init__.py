"""Attention for jax: inside and outside of `jax.jit`, `jax.vmap` and `jax.grad`.

    from attn_mlir.jax import dot_product_attention  # replaces jax.nn.dot_product_attention

Operands are bfloat16 or float16. For arrays on a GPU, a callback launches kernels on XLA's stream
and on XLA's buffers; for arrays on the host, the emulator runs the kernels. The first call imports
jax.
"""

from __future__ import annotations

import inspect
from typing import Any

from attn_mlir.api.attention import attention as _of_memory
from attn_mlir.jax.dot_product import dot_product_attention
from attn_mlir.jax.host import BELOW, LEAST, implementation

__all__ = ["BELOW", "LEAST", "attention", "dot_product_attention"]


def attention(*arguments: Any, **options: Any) -> Any:
    """Computes `attn_mlir.attention` for arrays of jax, which may be traced.

    Array arguments may be arrays of jax, traced or not, or of numpy; all other arguments must be
    known when jax traces the call. Modifiers may read arrays of jax as well. Rows outside of every
    sequence are 0, and their LSE is -inf.

    `attention_backward` computes the gradients of q, k, v, sinks and the arrays that `score_mod`
    reads. They have the same bits every time, unless `deterministic` is False, or is left out while
    the gradient of an array that `score_mod` reads is requested.

    Under `jax.vmap` the mapped axis is merged into the batch if every array has a batch axis and is
    mapped; otherwise the kernels are launched once for each sample.

    Returns:
      O, or with `return_lse` (O, LSE), as `attn_mlir.attention` returns them.

    Raises:
      SpecError: as of `attn_mlir.attention`; or `out`, `device`, `stream`, `block_mask` or a cache
        is passed.
      ImportError: jax is missing, or its version is not supported.
    """
    return implementation().attention(*arguments, **options)


vars(attention)["__signature__"] = inspect.signature(_of_memory).replace(return_annotation=Any)
