"""The names of the kernel's arguments for operations in a score modifier. Without MLIR."""

WORKSPACE = ("part_sums", "part_extremes", "arrived")
TILE_COUNTER = "tiles_drawn"
TURNS = "turns"  # of `attn.turns`
ROW_WEIGHTS = "row_weights"  # of `attn.row_weights`
