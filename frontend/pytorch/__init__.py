"""What `attn_mlir.torch` is made of: shapes, operators, graphs."""
