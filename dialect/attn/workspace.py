"""The memory of `attn.join` by the names that the kernel takes it by. Without MLIR."""

WORKSPACE = ("part_sums", "part_extremes", "arrived")
