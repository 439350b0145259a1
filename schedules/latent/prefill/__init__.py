"""Latent attention before absorption."""
