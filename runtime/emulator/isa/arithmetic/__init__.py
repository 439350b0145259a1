"""Arithmetic, logic and conversions of lanes."""
