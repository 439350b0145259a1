"""What the kernels have to give that FlashInfer ships as CUDA C++."""

from __future__ import annotations

from attn_mlir.validation.conformance.formulas import flashinfer

FORMULAS = {
    "nvcc.forward": flashinfer.FORMULAS["flashinfer.prefill"],
}
