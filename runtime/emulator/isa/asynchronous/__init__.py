"""Barriers and asynchronous copies."""
