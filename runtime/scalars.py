"""Numbers of a call: what counts as an integer, a float or a flag, whichever library they come from.

Strings are no numbers, and True is no 1. Scalars of numpy and arrays of rank 0 are numbers as Python's
own are.
"""

from __future__ import annotations

import operator
from typing import Any

from attn_mlir.errors import SpecError, shown

MAX_I32 = 2**31 - 1


def integer(
    name: str, value: object, least: int = 0, most: int = MAX_I32, *, also: str = ""
) -> int:
    """An integer of a call.

    Args:
      name: of the argument, for the message.
      least, most: both allowed.
      also: what else is allowed, for the message: ` or None`.

    Raises:
      SpecError: no integer, or out of bounds.
    """
    number = as_int(value)
    if number is None or not least <= number <= most:
        raise SpecError(
            f"{name} must be an integer from {least} to {most}{also}, got {shown(value, 40)}"
        )
    return number


def flag(name: str, value: object) -> bool:
    """True or False, also as numpy has them.

    Raises:
      SpecError: anything else.
    """
    if isinstance(value, bool) or (_dtype(value) == "bool" and _shape(value) == ()):
        return bool(value)
    raise SpecError(f"{name} must be True or False, got {shown(value, 40)}")


def as_int(value: object) -> int | None:
    """The integer that a value is, or None."""
    if type(value) is int:
        return value
    if value is None:  # PyTorch's tracer, up to 2.11 at least, does not get as far as the exception
        return None
    if isinstance(value, bool) or _dtype(value) == "bool" or _shape(value) != ():
        return None
    try:
        return operator.index(value)  # pyright: ignore[reportArgumentType]
    except Exception:  # somebody else's code, where there is any
        return None


def as_float(value: object) -> float | None:
    """The number that a value is, infinite where it is too large for a float, or None."""
    if type(value) is float:
        return value
    dtype = _dtype(value)
    if isinstance(value, (str, bytes, bytearray, bool)) or dtype == "bool" or "complex" in dtype:
        return None
    if _shape(value) != ():
        return None
    try:
        return float(value)  # pyright: ignore[reportArgumentType]
    except OverflowError:
        return float("inf")
    except Exception:  # somebody else's code, where there is any
        return None


def _dtype(value: object) -> str:
    """The name of an array's or a scalar's dtype, without its library; empty for other values."""
    return str(_field(value, "dtype", "")).rpartition(".")[2]


def _shape(value: object) -> tuple[Any, ...]:
    """Of an array; that of a number for other values."""
    try:
        return tuple(_field(value, "shape", ()))
    except TypeError:
        return ()


def _field(value: object, name: str, otherwise: Any) -> Any:
    try:
        return getattr(value, name, otherwise)
    except Exception:  # somebody else's code
        return otherwise
