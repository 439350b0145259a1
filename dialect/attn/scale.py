"""How large scales of scores may be. Without MLIR: requests name the bound as well."""

MAX_SCALE = 2e38  # times log2(e) it has to be finite in float32
