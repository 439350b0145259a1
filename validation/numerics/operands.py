"""Arrays of numpy that tests pass to calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def i32(*numbers: Any) -> npt.NDArray[Any]:
    """An array of these numbers, or rows of numbers."""
    return np.array(numbers, np.int32)


class Foreign:
    """An array of a library that is none of numpy, torch and cupy, but speaks DLPack."""

    def __init__(self, array: npt.NDArray[Any]):
        self.array = array

    def __array_namespace__(self) -> Any:
        return np

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()
