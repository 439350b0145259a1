"""Which keys a query sees: masks by closed forms, and lists of blocks."""

from attn_mlir.masks.kinds import Mask, causal, chunked, full, prefix_lm, sliding_window

__all__ = ["Mask", "causal", "chunked", "full", "prefix_lm", "sliding_window"]
