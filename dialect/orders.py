"""In which orders kernels take their work tiles. Without MLIR: requests name them as well."""

TILE_ORDERS = ("single", "last_first", "persistent", "clc", "ragged")
LOOPING_ORDERS = ("persistent", "clc")  # a CTA may work on several tiles, one after the other
FROM_THE_END = ("last_first", "clc")  # blocks of queries count down
