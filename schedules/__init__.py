"""Schedules: from an operation of `attn` to the roles of its kernel, a folder for each."""
