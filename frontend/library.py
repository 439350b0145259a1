"""The library of arrays that this package itself computes with: positions, offsets, lengths."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, cast

from attn_mlir.errors import SpecError, shown

LIBRARIES = ("numpy", "torch", "cupy")  # index and compute alike


def library_of(array: Any, name: str = "an array") -> str:
    """The library of an array, one of `LIBRARIES`.

    Raises:
      SpecError: another one, or no array.
    """
    if isinstance(getattr(array, "shape", None), tuple):
        kind = cast("type[object]", type(array))
        if (library := _root(kind)) in LIBRARIES:
            return library
        for base in kind.__mro__[1:]:
            if (library := _root(base)) in LIBRARIES:
                return library
    raise SpecError(f"{name} must be an array of numpy, torch or cupy, got {shown(array, 40)}")


def check_one_library(arrays: Mapping[str, Any]) -> None:
    """Refuses arrays that cannot be computed with at once.

    Args:
      arrays: by name; those that are None are left out.

    Raises:
      SpecError: names the first one of another library or device than the first.
    """
    present = {name: array for name, array in arrays.items() if array is not None}
    locations = {
        name: (library_of(x, name), getattr(x, "device", "cpu")) for name, x in present.items()
    }
    first = next(iter(locations), "")
    for name, location in locations.items():
        if location != locations[first]:
            (library, where), (other, there) = location, locations[first]
            raise SpecError(
                f"{name} is of {library} on {where}, {first} of {other} on {there}: they are "
                "computed with at once"
            )


def padded(array: Any, step: int, axis: int = -1) -> Any:
    """The array, or a copy of it with zeros behind, up to a multiple of `step` along an axis."""
    missing = -array.shape[axis] % step
    if not missing:
        return array
    name = library_of(array)
    module: Any = sys.modules[name]
    after = -axis - 1 if axis < 0 else array.ndim - axis - 1
    if name == "torch":
        return module.nn.functional.pad(array, (0, 0) * after + (0, missing))
    before = array.ndim - after - 1
    return module.pad(array, [(0, 0)] * before + [(0, missing)] + [(0, 0)] * after)


def in_i32(array: Any) -> Any:
    """Indices in i32: a number that has no place there becomes the nearest, which is no index
    either.
    """
    least, most = -(2**31), 2**31 - 1
    if library_of(array) == "torch":
        return array.clamp(least, most).int()
    return array.clip(least, most).astype("int32")


def _root(kind: type[object]) -> str:
    """The package of a class."""
    return kind.__module__.partition(".")[0]
