"""Kernel schedules: from the `attn` dialect to warp-specialised kernels."""

from attn_mlir.passes.schedule.convert import ConvertAttnToWs

__all__ = ["ConvertAttnToWs"]
