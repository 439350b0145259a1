"""New tokens into caches."""
