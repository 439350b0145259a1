"""Kernels of other projects, compiled by their own packages, on the emulator."""
