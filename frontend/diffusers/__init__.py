"""Attention for models of the `diffusers` package: `model.set_attention_backend("attn_mlir")`.

    attn_mlir.diffusers.register()
    model.set_attention_backend("attn_mlir")

The truth is the package's own `native` backend. Context parallelism is served, by Ulysses and by
rings. Autograd gets gradients where kernels compute them. CUDA tensors run on their GPU, CPU
tensors on the emulator.
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
