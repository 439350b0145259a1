"""Schedules of latent attention."""
