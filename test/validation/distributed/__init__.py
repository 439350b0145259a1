"""Attention of sequences on several ranks: processes on this machine, and what they check."""
