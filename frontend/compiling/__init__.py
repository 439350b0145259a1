"""Requests, and how they become bundles."""
