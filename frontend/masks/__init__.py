"""Masks in closed form: which keys a query sees; as objects and as text."""

from attn_mlir.masks.kinds import Mask, causal, chunked, full, prefix_lm, sliding_window

__all__ = ["Mask", "causal", "chunked", "full", "prefix_lm", "sliding_window"]
