"""Arguments of a call: what they are, where they lie, and what a kernel takes of them."""
