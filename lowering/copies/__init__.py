"""Copies between global and shared memory, and prefetches."""
