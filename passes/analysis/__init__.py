"""Analyses of kernels, which change nothing."""
