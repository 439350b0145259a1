"""The orders in which kernels take work tiles. Without MLIR, as requests name them as well."""

TILE_ORDERS = ("single", "last_first", "persistent", "clc", "ragged")
LOOPING_ORDERS = ("persistent", "clc")  # a CTA may compute several tiles, one after the other
FROM_THE_END = ("last_first", "clc")  # the last block of queries comes first
