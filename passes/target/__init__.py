"""What the machines hold, and how attention is cut to fit them."""
