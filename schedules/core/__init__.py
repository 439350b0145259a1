"""The problem that a kernel solves: its configuration, query rows, key tiles, splits, modifier."""
