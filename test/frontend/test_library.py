"""What is computed with arrays of the caller's library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attn_mlir.errors import SpecError
from attn_mlir.library import padded

torch: Any = pytest.importorskip("torch")


@pytest.mark.parametrize("of", [lambda x: x, torch.from_numpy], ids=["numpy", "torch"])
def test_columns_are_padded_to_whole_steps(of: Any) -> None:
    """With zeros behind; an array of whole steps is the caller's own."""
    array = of(np.arange(1, 43, dtype=np.float32).reshape(2, 3, 7))
    whole = padded(array, 8)
    assert type(whole) is type(array) and tuple(whole.shape) == (2, 3, 8)
    assert np.array_equal(whole[..., :7], array) and not whole[..., 7:].any()
    assert padded(array, 7) is array
    with pytest.raises(SpecError, match="^an array must be an array of numpy, torch or cupy"):
        padded(memoryview(b"1234567"), 2)
