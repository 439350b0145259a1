"""How large scales of scores may be, and what the factors of 8-bit operands are called. Without MLIR."""

MAX_SCALE = 2e38  # times log2(e) it has to be finite in float32
DESCALES = ("q_descale", "k_descale", "v_descale")  # operands of kernels for 8-bit q, k and v
