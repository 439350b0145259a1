"""Attention for models of the `diffusers` package: `model.set_attention_backend("attn_mlir")`.

    attn_mlir.diffusers.register()
    model.set_attention_backend("attn_mlir")

The results are those of the package's own `native` backend. Context parallelism works by Ulysses
and by rings. Autograd computes the gradients of query, key and value. Kernels run on the GPU for
CUDA tensors, and on the emulator for CPU tensors.
"""

from attn_mlir.diffusers.backend import attention
from attn_mlir.diffusers.registration import (
    BELOW,
    LEAST,
    NAME,
    Registration,
    register,
    unregister,
)

__all__ = ["BELOW", "LEAST", "NAME", "Registration", "attention", "register", "unregister"]
