"""Arrays of numpy that tests pass to calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def i32(*numbers: Any) -> npt.NDArray[Any]:
    """An array of these numbers, or rows of numbers."""
    return np.array(numbers, np.int32)
