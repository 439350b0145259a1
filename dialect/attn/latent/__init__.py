"""Latent attention: its operations, and how a cache stores its rows."""
