"""Attention of many queries, with S, P and O in the registers of warpgroups."""
