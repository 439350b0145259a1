"""One module per kernel: from an operation to its roles."""
