"""Calls of public functions that take arrays, each of them right as it stands."""
