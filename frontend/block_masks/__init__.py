"""Which blocks of scores are empty, partly visible or full: lists that kernels walk."""
