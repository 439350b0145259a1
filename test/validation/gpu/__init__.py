"""Checks of a real GPU, without pytest and without the compiler; `make gpu` and test/gpu run them."""
