"""Our dialects, defined in Python, and `_mlir`, the one door to MLIR."""
