"""A copy of tiles by the copy engine."""
