"""Roles that kernels of absorbed latent attention share."""
