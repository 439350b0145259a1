"""Latent attention over rows that lists name."""
