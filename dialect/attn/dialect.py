"""The `attn` dialect object; its operations and attributes attach themselves to it."""

from attn_mlir.dialect._mlir import ext


class AttnDialect(ext.Dialect, name="attn"):
    """Attention as users describe it: operands, mask, score modifier, scale; no target."""
