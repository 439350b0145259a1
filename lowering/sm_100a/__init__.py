"""Lowerings for Blackwell alone: tensor memory, and products that add to it (`tcgen05`)."""
