"""The ring protocol of a kernel's roles: extracted, counted, simulated."""
