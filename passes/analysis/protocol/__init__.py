"""What the roles of a kernel do with its rings: extracted, counted, simulated."""
