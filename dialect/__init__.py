"""Our dialects, defined in Python, and `_mlir`, the one import of MLIR."""
