"""Score modifiers as programs: what they compute, read, and their derivatives."""
