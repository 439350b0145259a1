"""Analyses: what is computed about a kernel without changing it."""
