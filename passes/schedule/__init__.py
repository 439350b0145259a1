"""Kernel schedules: from the `attn` dialect to warp-specialised kernels."""
