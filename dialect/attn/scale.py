"""The largest scale of scores, and the names of the factors of 8-bit operands. Without MLIR."""

MAX_SCALE = 2e38  # so that it is finite in float32 when multiplied by log2(e)
DESCALES = (
    "q_descale",
    "k_descale",
    "v_descale",
)  # names of the kernel's operands for 8-bit q, k and v
