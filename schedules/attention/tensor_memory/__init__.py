"""Attention of many queries, with S, P and O in tensor memory."""
