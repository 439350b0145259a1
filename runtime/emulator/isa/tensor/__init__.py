"""Tensor cores, tensor memory and matrix fragments."""
