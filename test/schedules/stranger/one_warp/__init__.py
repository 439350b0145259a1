"""Attention by one warp: a schedule in a folder of its own."""
