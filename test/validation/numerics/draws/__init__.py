"""Attention problems drawn at random over everything that the API offers; see `axes` and `replay.py`."""
