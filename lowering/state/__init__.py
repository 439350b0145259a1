"""The state of one lowering: handles of what a kernel's values are, and the registry of checks."""
