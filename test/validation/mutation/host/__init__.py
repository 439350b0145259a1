"""Faults planted in the host's Python, and which tests notice them."""
