"""Benchmarks: each is a program, `python bench/NAME.py --help`."""
