"""Mistakes planted in kernels, and who notices them."""
