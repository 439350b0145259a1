"""Attention of few queries, past which keys and values stream."""
