"""Storage of operands: storage operations, sequences, pages, indexed rows, scales."""
