"""Schedules of `attn.mha`."""
