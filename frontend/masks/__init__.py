"""Which keys a query sees: masks by closed forms, as objects and as text."""

from attn_mlir.masks.kinds import Mask, causal, chunked, full, prefix_lm, sliding_window

__all__ = ["Mask", "causal", "chunked", "full", "prefix_lm", "sliding_window"]
