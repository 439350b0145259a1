"""Requests for the kernels of gradients."""
