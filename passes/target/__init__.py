"""Limits of the target machines, and tile sizes of attention that fit them."""
