"""Hopper alone: products of a warpgroup into its registers (`wgmma`)."""
