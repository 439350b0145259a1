"""Loads, stores, atomics and moves between registers."""
