"""The names of the kernel's arguments for `attn.join` and `attn.tile_counter`. Without MLIR."""

WORKSPACE = ("part_sums", "part_extremes", "arrived")
TILE_COUNTER = "tiles_drawn"
