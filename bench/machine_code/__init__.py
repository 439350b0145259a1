"""Reads machine code and PTX: instructions, loops, turns, and what two texts differ in."""
