"""Which schedule computes an operation, and how: no MLIR is needed."""
