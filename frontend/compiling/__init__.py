"""Requests, and the way from a request to a bundle."""
