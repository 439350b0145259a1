"""Machines that launch bundles: `cuda` and `emulator`."""
