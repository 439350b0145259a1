"""Checks of what the lowering covers: those for every target, of copies and of clusters."""
