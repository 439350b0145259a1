"""What Blackwell has and others do not: tensor memory, and products that add to it (`tcgen05`)."""
