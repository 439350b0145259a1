"""Integers, floats and flags of a call, from any library.

Strings are not numbers, and True is not 1. numpy scalars and arrays of rank 0 count like Python's
numbers.
"""

from __future__ import annotations

import operator
from typing import Any

from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.torch_tensors import check_tensor, is_compiling, is_tensor

MAX_I32 = 2**31 - 1


def integer(
    name: str, value: object, least: int = 0, most: int = MAX_I32, *, also: str = ""
) -> int:
    """Checks an integer argument and returns it.

    Args:
      name: the argument's name, for the message.
      least, most: inclusive bounds.
      also: other allowed values, for the message: ` or None`.

    Raises:
      SpecError: it is no integer, or out of bounds.
    """
    number = as_int(value)
    if number is None or not least <= number <= most:
        allowed = f"{least}" if least == most else f"an integer from {least} to {most}"
        raise SpecError(f"{name} must be {allowed}{also}, got {shown(value, 40)}")
    return number


def flag(name: str, value: object) -> bool:
    """Checks a boolean argument, of Python or numpy, and returns it.

    Raises:
      SpecError: anything else.
    """
    if isinstance(value, bool) or (_dtype(value) == "bool" and extents(value) == ()):
        return bool(value)
    raise SpecError(f"{name} must be True or False, got {shown(value, 40)}")


def as_int(value: object) -> int | None:
    """A value as an integer, or None if it is none."""
    if type(value) is int:
        return value
    if value is None:  # PyTorch's tracer, up to 2.11 at least, does not handle the exception below
        return None
    if isinstance(value, bool) or _dtype(value) == "bool" or extents(value) != ():
        return None
    try:
        return operator.index(value)  # pyright: ignore[reportArgumentType]
    except Exception:  # foreign code, which may raise anything
        return None


def as_float(value: object, name: str = "a number") -> float | None:
    """A value as a float, infinite if it is too large, or None if it is no number.

    Args:
      name: of the argument, for messages.

    Raises:
      SpecError: a tensor of which a derivative is wanted, which a number has lost.
    """
    if type(value) is float:
        return value
    dtype = _dtype(value)
    if isinstance(value, (str, bytes, bytearray, bool)) or dtype == "bool" or "complex" in dtype:
        return None
    if extents(value) != ():
        return None
    if is_tensor(value) and not is_compiling():
        check_tensor(value, name)
    try:
        return float(value)  # pyright: ignore[reportArgumentType]
    except OverflowError:
        return float("inf")
    except Exception:  # foreign code, which may raise anything
        return None


def _dtype(value: object) -> str:
    """The name of an array's or scalar's dtype, without its library; empty for other values."""
    return str(_field(value, "dtype", "")).rpartition(".")[2]


def extents(value: object) -> tuple[Any, ...]:
    """The shape of an array by its own account; that of a scalar for other values."""
    try:
        return tuple(_field(value, "shape", ()))
    except TypeError:
        return ()


def _field(value: object, name: str, otherwise: Any) -> Any:
    try:
        return getattr(value, name, otherwise)
    except Exception:  # somebody else's code
        return otherwise
