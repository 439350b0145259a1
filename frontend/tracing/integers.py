"""Integers of 8 and 16 bits, as torch and numpy compute with them.

Programs have none: they compute in i32, and a result that may leave its type is wrapped around into
it by a few operations on bits. The type of an operation follows from its operands, as for tensors
of rank 0 in torch: the smaller type that holds both among 8 and 16 bits (u8 and i8 give i16, u16
and i8 give i32), and that of the other operand where it is i32, i64 or f32. Python integers take
the type of the other operand.
"""

from __future__ import annotations

from collections.abc import Iterable

from attn_mlir.element_types import ELEMENT_TYPES

_SMALL = ("i8", "u8", "i16", "u16")
BITS = {name: ELEMENT_TYPES[name].bits for name in _SMALL}
NUMPY_NAMES = {name: ELEMENT_TYPES[name].numpy for name in _SMALL}
_KINDS = {name: kind for kind, name in NUMPY_NAMES.items()}
EXACT = ("min", "max", "where", "eq", "ne", "lt", "le", "gt", "ge")  # take no wrapped numbers
_SIGNED_OVERFLOW = ("add", "sub", "mul", "neg", "shl", "abs", "floordiv")  # -128 // -1 is 128
_UNSIGNED_OVERFLOW = ("add", "sub", "mul", "neg", "shl")


def values_of(kind: str) -> range:
    """The numbers of a type."""
    bits = BITS[kind]
    return range(1 << bits) if kind[0] == "u" else range(-(1 << bits - 1), 1 << bits - 1)


def kind_of(dtype: object) -> str | None:
    """The type of 8 or 16 bits that a dtype of numpy or torch is, if it is one."""
    return _KINDS.get(str(dtype).rpartition(".")[2])


def promoted(kinds: Iterable[str]) -> str | None:
    """The type of 8 or 16 bits in which numbers of these types meet; None for a wider one.

    Truth values take the type of the others.
    """
    integers = [kind for kind in kinds if kind != "i1"]
    if not integers or any(kind not in BITS for kind in integers):
        return None
    lowest = min(values_of(kind).start for kind in integers)
    highest = max(values_of(kind).stop for kind in integers)
    for kind in ("u8", "i8", "u16", "i16"):
        values = values_of(kind)
        if values.start <= lowest and highest <= values.stop:
            return kind
    return None


def wrapped(kind: str, value: int) -> int:
    """An integer as its lowest bits are read in a type."""
    values = values_of(kind)
    return (value - values.start) % len(values) + values.start


def may_overflow(op: str, kind: str) -> bool:
    """Whether a result of an operation on numbers of a type may be none of the type."""
    return op in (_UNSIGNED_OVERFLOW if kind[0] == "u" else _SIGNED_OVERFLOW)
