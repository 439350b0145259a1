"""Float32 matrix products that stay on the caller's thread."""

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

# OpenBLAS (numpy's wheels) runs a product of up to this many multiply-adds on the calling thread,
# and larger ones on all cores. Its threads spin while they wait: measured 2026-11 on 2 cores shared
# with other work, 128 x 128 x 128 took 0.1 to 13 ms on threads and 0.1 ms in blocks of 16 rows
# (alone, 56 us against 68 us). Redo: time `a @ b` against `row_blocked` beside busy processes.
SERIAL_MULTIPLY_ADDS = 1 << 18
_FEWEST_ROWS = 8  # smaller blocks cost more in packing B than threads cost


def row_blocked(a: F32, b: F32) -> F32:
    """a [banks, M, K] times b [banks, K, N], as [max banks, M, N]; a or b may have one bank.

    The rows of `a` are multiplied in blocks of a power of two.
    """
    m, k = a.shape[-2:]
    n = b.shape[-1]
    rows = SERIAL_MULTIPLY_ADDS // (n * k)
    rows = 1 << max(rows, _FEWEST_ROWS).bit_length() - 1
    if rows >= m or m % rows:
        return a @ b
    product = a.reshape(a.shape[0], m // rows, rows, k) @ b[:, None]
    return product.reshape(product.shape[0], m, n)
