"""The region of a score modifier, and operations that stand in it."""
