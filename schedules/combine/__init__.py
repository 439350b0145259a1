"""Splits of the keys into one result."""
