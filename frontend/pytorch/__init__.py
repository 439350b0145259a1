"""The implementation of `attn_mlir.torch`: shapes, operators, graphs."""
