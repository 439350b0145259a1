"""The functions that users call, on operands of any library: checks, plans and launches."""
