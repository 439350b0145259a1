"""Arithmetic on fragments, by element and by small products in registers."""
