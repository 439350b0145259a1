"""Signatures of calls: everything about arguments that affects a launch, read by a few attributes.

A `view` of an array by DLPack takes some ten microseconds. If an equal call was checked before, it
is enough to know that its arrays would give the same views except for addresses. This is only
decided for arrays whose attributes show it reliably: those of numpy and torch, without subclasses,
and views. Other arguments are compared by value, if they are of an immutable class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, NoneType
from typing import Any

import numpy as np

from attn_mlir.runtime.call.tensors import TensorView
from attn_mlir.runtime.call.torch_tensors import layout_reader


@dataclass(frozen=True)
class Kind:
    """How arrays of one class are read.

    Attributes:
      layout: a key that is equal for arrays whose views differ only in address and owner; None if
        `view` is needed. May raise any error.
      address: the address of element 0. May raise any error.
    """

    layout: Callable[[Any], Hashable | None]
    address: Callable[[Any], int]


class Signature:
    """The signature of a call.

    Attributes:
      key: equal for calls that differ only in addresses; begins with the given prefix.
      arrays: the arrays among the arguments, in order.
      addresses: the addresses of the arrays.
      captured: indices in `arrays` of those that functions capture.
      seen: what was met inside functions, by id: its number and the object itself.
    """

    __slots__ = ("addresses", "arrays", "captured", "key", "seen")

    def __init__(self, *key: Hashable):
        self.key: list[Hashable] = [*key]
        self.arrays: list[Any] = []
        self.addresses: list[int] = []
        self.captured: list[int] = []
        self.seen: dict[int, tuple[int, Any]] = {}

    def add_array(self, array: object) -> bool:
        """Adds an array, one of those that `is_array` tells; returns whether it could be read."""
        cls = type(array)
        kind = _KINDS[cls]
        try:
            layout, address = kind.layout(array), kind.address(array)
        except Exception:  # errors of the library: no memory, another layout
            return False
        if layout is None or not address:
            return False
        self.key += (cls, layout, address % ALIGNMENT)
        self.arrays.append(array)
        self.addresses.append(address)
        return True


class Reader:
    """Reads signatures.

    Args:
      by_value: further immutable classes, whose objects are compared by value.
      parts: classes whose objects stand for several arguments, like tuples, each with a function
        that returns these.
      others: further classes, each with a function that adds one of its objects, given the reader
        and the signature, and returns whether it could be read.
    """

    def __init__(
        self,
        by_value: Iterable[type] = (),
        parts: Mapping[type, Callable[[Any], Sequence[object]]] = MappingProxyType({}),
        others: Mapping[type, Callable[[Reader, Signature, Any], bool]] = MappingProxyType({}),
    ):
        self._others = dict(others)
        self._by_value = {NoneType, bool, int, str, type, *by_value}
        self._parts: dict[type, Callable[[Any], Sequence[object]]] = {tuple: _itself, **parts}

    def add(self, signature: Signature, values: Iterable[object]) -> bool:
        """Adds arguments; returns whether all of them could be read.

        Arrays without memory cannot be read, nor numbers that are equal to others with different
        bits.
        """
        if not _OF_TORCH and "torch" in sys.modules:
            _register_torch()
        key = signature.key
        for value in values:
            cls = type(value)
            if cls in _KINDS:
                if not signature.add_array(value):
                    return False
            elif cls in self._by_value or cls in _OF_TORCH or (cls is float and value):
                key += (cls, value)
            elif (parts_of := self._parts.get(cls)) is not None:
                parts = parts_of(value)
                key += (cls, len(parts))
                if not self.add(signature, parts):
                    return False
            elif (add := self._others.get(cls)) is None or not add(self, signature, value):
                return False
        return True


def _itself(parts: Any) -> Sequence[object]:
    """The elements of a tuple."""
    return parts


def is_array(value: object) -> bool:
    """Whether a value is an array whose address a signature has."""
    return type(value) in _KINDS


def address_of(array: object) -> int:
    """The address of element 0 of such an array; 0 for anything else."""
    kind = _KINDS.get(type(array))
    return 0 if kind is None else kind.address(array)


def _register_torch() -> None:
    """Registers torch's tensors and parameters, and its dtypes as values, if torch is loaded."""
    torch: Any = sys.modules["torch"]
    layout_of = layout_reader()
    for tensor_class in (torch.Tensor, torch.nn.Parameter):
        _KINDS[tensor_class] = Kind(layout_of, tensor_class.data_ptr)
    _OF_TORCH.add(torch.dtype)


def _layout_of_numpy(array: Any) -> Hashable | None:
    return array.shape, array.strides, array.dtype, array.flags.writeable


def _address_of_numpy(array: Any) -> int:
    return array.__array_interface__["data"][0]


def _layout_of_view(view: TensorView) -> Hashable | None:
    return view.dtype, view.shape, view.strides, view.device, view.device_index, view.read_only


# bytes; no choice of kernel depends on more alignment, and plans check what a kernel needs
ALIGNMENT = 16

_OF_TORCH: set[type] = set()  # classes whose objects are compared by value
_KINDS: dict[type, Kind] = {
    np.ndarray: Kind(_layout_of_numpy, _address_of_numpy),
    TensorView: Kind(_layout_of_view, lambda view: view.address),
}
