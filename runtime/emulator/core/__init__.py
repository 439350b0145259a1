"""The state of an emulated launch, its order, and what watches it."""
