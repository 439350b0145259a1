"""Legality checks: those for every target, of copies and of clusters."""
