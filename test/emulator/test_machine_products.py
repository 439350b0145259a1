"""Row-blocked products equal plain ones."""

import numpy as np
import pytest

from attn_mlir.runtime.emulator.machine.products import row_blocked


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((1, 128, 16), (1, 16, 128)),
        ((1, 128, 128), (1, 128, 128)),
        ((1, 64, 128), (2, 128, 64)),
        ((2, 64, 64), (2, 64, 128)),
        ((1, 128, 512), (1, 512, 256)),
        ((4, 32, 16), (4, 16, 16)),
        ((1, 100, 512), (1, 512, 256)),
    ],
)
def test_blocks_multiply_every_row(a_shape: tuple[int, ...], b_shape: tuple[int, ...]):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype(np.float32) for s in (a_shape, b_shape))
    got = row_blocked(a, b)
    assert got.shape == (max(a_shape[0], b_shape[0]), a_shape[1], b_shape[2])
    assert (got == np.matmul(a.astype(np.float64), b.astype(np.float64))).all()
