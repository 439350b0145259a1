"""The frame of a kernel: its function, roles, loops and work tiles."""
