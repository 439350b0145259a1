"""Arrays of numpy that tests pass to calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

ROOM = 64  # columns on either side of arrays that are parts of larger ones


def i32(*numbers: Any) -> npt.NDArray[Any]:
    """An array of these numbers, or rows of numbers."""
    return np.array(numbers, np.int32)


def inside(array: npt.NDArray[Any], nothing: float = np.nan) -> npt.NDArray[Any]:
    """The same array as a part of a larger one of `nothing`: behind others, and between other columns."""
    shape = (len(array) + 2, *array.shape[1:-1], array.shape[-1] + 2 * ROOM)
    room = np.full(shape, nothing).astype(array.dtype)
    found = room[1 : 1 + len(array), ..., ROOM : ROOM + array.shape[-1]]
    found[...] = array
    return found


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
