"""Latent attention after absorption, over the sequences of a cache."""
