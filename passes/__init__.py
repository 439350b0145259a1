"""Passes on our dialects, the table of passes and pipelines, and `attn-opt`."""
