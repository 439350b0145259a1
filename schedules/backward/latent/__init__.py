"""Gradients of latent attention before absorption."""
