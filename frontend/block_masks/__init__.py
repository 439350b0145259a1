"""Block masks: which blocks of scores are empty, partly visible or full, as lists for kernels."""
