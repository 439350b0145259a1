"""Control flow, calls, and instructions of a warp's lanes together."""
