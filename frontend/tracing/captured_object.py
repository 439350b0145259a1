"""Stand-ins for captured objects: what is read from them becomes stand-ins, writing is refused.

A traced function runs once, when it is traced. What it writes into objects that it found outside
itself would be written once, whatever the number of scores, and not when the kernel runs.
"""

from __future__ import annotations

import enum
import numbers
import sys
import types
from collections.abc import Callable, Container, ItemsView, Iterator, KeysView, ValuesView
from typing import Any, cast

Captures = Any  # of `capture`, which knows this module
LIBRARIES = (
    "numpy",
    "torch",
    "jax",
    "jaxlib",
    "cupy",
    "ml_dtypes",
    "attn_mlir",
    "pytest",
    "_pytest",
)
_PLAIN = (  # values that hold nothing to stand in for
    str | bytes | type(None) | types.EllipsisType | slice | range | enum.Enum | numbers.Number
    | types.BuiltinFunctionType | property | BaseException
)  # fmt: skip
_WRITERS = {  # methods of containers that change them
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "popitem"),
    *("update", "setdefault", "add", "discard", "move_to_end", "appendleft", "popleft", "rotate"),
    *("extendleft", "subtract", "difference_update", "intersection_update", "__ior__"),
    *("symmetric_difference_update", "__iadd__", "__imul__", "__setitem__", "__delitem__"),
}


def library_of(module: str | None) -> bool:
    """Whether a module belongs to a library, in which no user's arrays are kept."""
    first = (module or "").partition(".")[0]
    return first in LIBRARIES or first in sys.stdlib_module_names


def is_plain(value: object) -> bool:
    """Whether a value is shown to a traced function as it is."""
    if isinstance(value, _PLAIN):
        return True
    if isinstance(value, types.ModuleType):
        return library_of(value.__name__)
    if isinstance(value, type):
        return library_of(value.__module__) or not _has_content(value)
    if is_torch_module(value) or isinstance(value, Container | types.SimpleNamespace):
        return False
    return library_of(type(value).__module__)


def is_torch_module(value: object) -> bool:
    """Whether a value is a `torch.nn.Module`."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def is_of_torch(value: object) -> bool:
    """Whether a value is a tensor or a module of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor | torch.nn.Module)


def _has_content(kind: type) -> bool:
    """Whether a class has attributes that are no methods and no plain values."""
    if issubclass(kind, enum.Enum | BaseException):
        return False
    values = [
        value
        for parent in kind.__mro__
        if not library_of(parent.__module__)
        for name, value in vars(parent).items()
        if not (name.startswith("__") and name.endswith("__"))
    ]
    skipped = (types.FunctionType, types.MemberDescriptorType, staticmethod, classmethod)
    return any(not isinstance(value, (*skipped, *_PLAIN.__args__)) for value in values)


class Proxy:
    """The stand-in of an object: its attributes, items and methods see and give stand-ins."""

    __slots__ = ("_captures", "_label", "_target")
    _captures: Captures
    _target: Any
    _label: str

    def __init__(self, captures: Captures, label: str, target: object):
        for name, value in (("_captures", captures), ("_target", target), ("_label", label)):
            object.__setattr__(self, name, value)

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cast("Any", type(self._target))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        owner = getattr(value, "__self__", None)
        if owner is not self._target or isinstance(value, types.MethodType):
            return self._captures.stand_in(name, value)
        if name in _WRITERS:
            return self._refusing(f"calls {self._label}.{name}()")
        return self._wrapped(value)

    def _refusing(self, what: str) -> Callable[..., Any]:
        def refuse(*_args: Any, **_options: Any) -> Any:
            raise self._captures.refuse_writing(what)

        return refuse

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A built-in method, such as that of a dictionary, whose results become stand-ins."""

        def call(*args: Any, **options: Any) -> Any:
            return self._stand_in(function(*args, **options))

        return call

    def _stand_in(self, value: Any) -> Any:
        """The stand-in of a value that the function gets from the object."""
        if isinstance(value, Iterator | KeysView | ValuesView | ItemsView):
            value = list(cast("Any", value))
        return self._captures.stand_in(self._label, value)

    def _refuse(self, what: str) -> Any:
        raise self._captures.refuse_writing(what)

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse(f"sets {self._label}.{name}")

    def __delattr__(self, name: str) -> None:
        self._refuse(f"deletes {self._label}.{name}")

    def __setitem__(self, index: Any, value: Any) -> None:
        self._refuse(f"writes into {self._label}")

    def __delitem__(self, index: Any) -> None:
        self._refuse(f"deletes from {self._label}")

    def __getitem__(self, index: Any) -> Any:
        name = f"{self._label}_{index}" if isinstance(index, str | int) else self._label
        return self._captures.stand_in(name, self._target[index])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._stand_in(iter(self._target)))

    def __len__(self) -> int:
        return len(self._target)

    def __bool__(self) -> bool:
        return bool(self._target)

    def __contains__(self, item: Any) -> bool:
        return item in self._target

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._captures.call_of(self._label, self._target)(*args, **options)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, self._target)

    def __eq__(self, other: object) -> Any:
        return bool(self._target == (other._target if type(other) is Proxy else other))

    def __hash__(self) -> int:
        return hash(self._target)

    def __repr__(self) -> str:
        return repr(self._target)


def _operator(name: str) -> Callable[..., Any]:
    """An operator that the object's class defines; Python asks the type, not `__getattr__`."""

    def apply(self: Proxy, *others: Any) -> Any:
        target = object.__getattribute__(self, "_target")
        if not hasattr(cast("Any", type(target)), name):
            return NotImplemented
        return self.__getattr__(name)(*others)

    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor",
              "matmul"):  # fmt: skip
    for _form in (f"__{_name}__", f"__r{_name}__"):
        setattr(Proxy, _form, _operator(_form))


def _in_place(self: Proxy, other: Any) -> Any:
    captures, label = (object.__getattribute__(self, name) for name in ("_captures", "_label"))
    raise captures.refuse_writing(f"changes {label} in place")


for _form in ("__iadd__", "__imul__", "__ior__", "__isub__"):
    setattr(Proxy, _form, _in_place)


class Items(list[Any]):
    """The stand-in of a captured list: it cannot be changed."""

    captures: Captures
    label: str


class Table(dict[Any, Any]):
    """The stand-in of a captured dictionary: it cannot be changed."""

    captures: Captures
    label: str


class Members(set[Any]):
    """The stand-in of a captured set: it cannot be changed."""

    captures: Captures
    label: str


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(self: Items | Table | Members, *args: Any, **options: Any) -> Any:
        what = f"calls {self.label}.{name}()" if name.isalpha() else f"writes into {self.label}"
        raise self.captures.refuse_writing(what)

    return refuse


for _kind in (Items, Table, Members):
    for _name in sorted(_WRITERS & {*dir(list), *dir(dict), *dir(set)}):
        if hasattr(_kind, _name):
            setattr(_kind, _name, _refusing(_name))
