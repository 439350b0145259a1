"""The names of the kernel's arguments for the workspace of `attn.join`. Without MLIR."""

WORKSPACE = ("part_sums", "part_extremes", "arrived")
