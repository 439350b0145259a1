"""A launch as text: the fields of a TOML file, and arguments as words."""

from __future__ import annotations

import io
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import numpy as np

from attn_mlir.errors import SpecError, shown
from attn_mlir.files import read_file, reason

ZEROS = "zeros:"
ALLOWED = "NAME.npy, zeros:DTYPE:4x128 or a number"


@dataclass(frozen=True)
class Described:
    """A launch as it is described.

    Attributes:
      entry: of the kernel; None: the only one.
      grid, block, cluster: in x, y, z.
      shared_bytes: of dynamic shared memory.
      arguments: one for each parameter, see `argument`.
      save: file for an array after the launch, by the name of its parameter.
    """

    entry: str | None = None
    grid: Sequence[int] = (1,)
    block: Sequence[int] | None = None
    cluster: Sequence[int] = (1,)
    shared_bytes: int = 0
    arguments: Sequence[str | int | float] = ()
    save: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        arguments, save = cast("object", self.arguments), cast("object", self.save)
        if not isinstance(arguments, list | tuple):
            raise SpecError(f"arguments of a launch must be a list, got {shown(arguments, 40)}")
        if not isinstance(save, dict):
            raise SpecError(f"save of a launch must be a table, got {shown(save, 40)}")


def described(path: Path) -> dict[str, Any]:
    """The fields of `Described` in a file.

    Raises:
      SpecError: it cannot be read, is no TOML, or has a field of another name.
    """
    try:
        found = tomllib.loads(read_file(path).decode())
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the launch '{path}': {reason(error)}") from error
    names = [x.name for x in fields(Described)]
    for name in found:
        if name not in names:
            raise SpecError(f"{path} has a field {name!r}, allowed are {', '.join(names)}")
    return found


def argument(value: object, folder: Path = Path()) -> Any:
    """An argument of a launch.

    Args:
      value: a number, also as a word; `NAME.npy` for the array of a file; `zeros:DTYPE:4x128` for a
        new array, of a dtype of numpy.
      folder: that holds the file.

    Raises:
      SpecError: none of these, or a file that cannot be read.
    """
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str):
        raise SpecError(f"an argument must be {ALLOWED}, got {shown(value, 40)}")
    if value.endswith(".npy"):
        try:
            return np.load(io.BytesIO(read_file(folder / value)), allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise SpecError(f"cannot read the array '{folder / value}': {error}") from error
    try:
        if value.startswith(ZEROS):
            _, dtype, shape = value.split(":")
            return np.zeros([int(n) for n in shape.split("x")], dtype)
        return _number(value)
    except (ValueError, TypeError, MemoryError):
        raise SpecError(f"an argument must be {ALLOWED}, got {shown(value, 40)}") from None


def _number(text: str) -> int | float:
    try:
        return int(text, 0)
    except ValueError:
        return float(text)
