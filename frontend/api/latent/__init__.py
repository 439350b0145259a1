"""Latent attention: calls, rows of its caches, their formats and scales."""
