"""Kernels from elsewhere: their environment, their compiler, and launches of what it leaves."""
