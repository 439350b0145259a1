"""Sources that fill the stages of keys, values and queries."""
