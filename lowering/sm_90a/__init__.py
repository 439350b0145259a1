"""What Hopper has and others do not: products of a warpgroup into its registers (`wgmma`)."""
