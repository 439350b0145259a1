"""Attention of few queries in tensor memory, with keys in the rows of products."""
