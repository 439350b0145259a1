"""Latent attention over indexed rows."""
