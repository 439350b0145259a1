"""Attention over several GPUs: its calls, a simulation of ranks, and times that were measured."""
