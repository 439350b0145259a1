"""The orders in which kernels take work tiles. Without MLIR, as requests name them as well."""

TILE_ORDERS = ("single", "last_first", "persistent", "clc", "ragged", "counter")
LOOPING_ORDERS = ("persistent", "clc", "counter")  # a CTA may compute several tiles, in turn
FROM_THE_END = ("last_first", "clc")  # the last block of queries comes first in the grid
ANSWERED_ORDERS = ("clc", "counter")  # a CTA asks for each further tile
