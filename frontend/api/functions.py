"""Keys for traced functions: two functions with equal keys are traced to equal programs.

The key holds everything that tracing reads, by value: the code, and the contents of the closure,
the defaults and the globals that the code names, also for functions among these. Arrays are
arguments of the kernel: only their shapes, strides and dtypes count.

Some contents can change without a trace in the key: objects with attributes, lists, dictionaries,
modules of the user, methods, and code that imports or assigns outside itself. A function with such
contents has no key and is traced in every call.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import numpy as np

from attn_mlir.runtime.call.signatures import Reader, Signature, is_array

# modules whose functions nobody changes
LIBRARIES = frozenset({"numpy", "torch", "math", "attn_mlir.trace"})
CONSTANTS = frozenset({"dtype", "device", "Size"})  # classes of torch whose objects do not change
PURE = frozenset(
    "abs add all any ceil clamp clip cos divide e equal erf exp exp2 expm1 floor fmod gelu greater "
    "greater_equal inf isfinite isinf isnan less less_equal log log1p log2 logical_and logical_not "
    "logical_or maximum minimum mod multiply nan negative not_equal pi pow power remainder round "
    "shape sigmoid sign silu sin softplus sqrt square subtract tanh trunc where".split()
)  # attributes of libraries that depend on their arguments alone
BY_VALUE = frozenset({types.NoneType, bool, int, str, bytes})
BUILTINS: tuple[Any, ...] = (
    abs, all, any, bool, divmod, enumerate, float, int, isinstance, len, list, map, max, min, pow,
    range,
    reversed, round, sum, tuple, zip,
)  # fmt: skip
IMPURE = (
    *("IMPORT", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"),
    *("LOAD_NAME", "LOAD_FROM_DICT", "LOAD_LOCALS"),
)  # instructions, by how they begin, of code that does more than read what it names
MAX_TUPLES = 512  # tuples that are remembered
_class_of: Any = type  # whose result the checker knows as little as its argument
_MISSING = object()
_tuples: dict[int, tuple[tuple[Any, ...], object]] = {}  # by id: the tuple, and its stand-in
_stand_ins: dict[tuple[Any, ...], object] = {}  # contents of tuples -> what is in keys for them


class Names(NamedTuple):
    """The names that code looks up outside itself.

    Attributes:
      scope: globals and builtins.
      attributes: of any object.
      is_plain: whether the code only reads.
    """

    scope: tuple[str, ...]
    attributes: tuple[str, ...]
    is_plain: bool


def add_function(reader: Reader, signature: Signature, function: Any) -> bool:
    """Adds a traced function to a signature; returns whether it has a key."""
    before = len(signature.arrays)
    is_read = _FunctionReader(signature).value(function)
    signature.captured += range(before, len(signature.arrays))
    return is_read


class _FunctionReader:
    """Reads one function into the key of a signature."""

    def __init__(self, signature: Signature):
        self._signature = signature
        self._key = signature.key
        self._visited = signature.seen

    def value(self, value: Any) -> bool:
        """Adds a value that a function captures."""
        cls = _class_of(value)
        if cls in BY_VALUE:
            self._key += (cls, value)
            return True
        if cls is types.FunctionType:
            return self._once(value, self._function)
        if is_array(value):
            return self._once(value, self._signature.add_array)
        if cls is tuple or (hasattr(cls, "_fields") and issubclass(cls, tuple)):
            if (fixed := _fixed(value)) is not None:
                self._key.append(fixed)
                return True
            self._key += (cls, len(value))
            return self._all(value)
        if cls is float:
            self._key += (cls, value.hex())  # tells zeros and NaN apart
            return True
        if issubclass(cls, np.generic):
            self._key += (cls, value.dtype, value.tobytes())
            return True
        if cls is functools.partial:
            self._key += (cls, len(value.args), len(value.keywords), *value.keywords)
            return self._all((value.func, *value.args, *value.keywords.values()))
        return self._of_library(value)

    def _all(self, values: Iterable[Any]) -> bool:
        """Adds several values, up to the first one that cannot be read."""
        for value in values:
            if not self.value(value):
                return False
        return True

    def _once(self, value: Any, add: Callable[[Any], bool]) -> bool:
        """Adds a function or an array; a repeated one is a reference to the first."""
        met = self._visited.get(id(value))
        if met is not None:
            self._key += ("again", met[0])
            return True
        self._visited[id(value)] = (len(self._visited), value)
        return add(value)

    def _of_library(self, value: Any) -> bool:
        """Adds an object of a library that never changes; returns False for other objects."""
        if not (any(value is x for x in BUILTINS) or _is_constant(value) or _is_pure(value)):
            return False
        self._key += (type(value), value)
        return True

    def _function(self, function: types.FunctionType) -> bool:
        code, key = function.__code__, self._key
        names = _names(code)
        key.append(code)
        if not names.is_plain:
            return False
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # a variable that is not set yet
                return False
            if not self.value(content):
                return False
        scope, builtin = function.__globals__, function.__builtins__
        if _is_library(str(scope.get("__name__", ""))):
            return True
        for one in (function.__kwdefaults__, function.__dict__):
            if not one:
                key.append(0)
                continue
            key += (len(one), *one)
            if not self._all(one.values()):
                return False
        if function.__defaults__ and not self.value(function.__defaults__):
            return False
        if not (names.scope or names.attributes):
            return True
        # tracing takes the names of attributes for globals as well, to see whether PyTorch is meant
        for name in (*names.scope, *(x for x in names.attributes if x in scope)):
            value = scope[name] if name in scope else builtin.get(name, _MISSING)
            if value is _MISSING:  # tracing says so
                return False
            key.append(name)
            is_module = isinstance(value, types.ModuleType)
            if not (self._module(value, names.attributes, 3) if is_module else self.value(value)):
                return False
        return True

    def _module(self, module: types.ModuleType, attributes: tuple[str, ...], depth: int) -> bool:
        """Adds the attributes that code uses of a library's module."""
        values = {x: vars(module)[x] for x in attributes if x in vars(module)}
        self._key += (types.ModuleType, module.__name__, *values, len(values))
        if not _is_library(module.__name__):
            return False
        for attribute, value in values.items():
            if isinstance(value, types.ModuleType):
                if not depth or not self._module(value, attributes, depth - 1):
                    return False
            elif isinstance(value, float):
                self._key.append(value.hex())
            elif attribute in PURE or _is_constant(value):
                self._key.append(value)
            else:
                return False
        return True


@functools.lru_cache(maxsize=512)
def _is_library(name: str) -> bool:
    """Whether a module of that name is a library's."""
    return name in LIBRARIES or name.partition(".")[0] in LIBRARIES


def _fixed(value: tuple[Any, ...]) -> object | None:
    """An object that identifies a tuple by its contents; None if it holds more than values.

    Tuples of values never change, so an object that was read once is found again by its id.
    """
    entry = _tuples.get(id(value))
    if entry is not None:
        return entry[1]
    content = _content(value)
    if content is None:
        return None
    if len(_tuples) >= MAX_TUPLES:  # equal tuples have other stand-ins then, which costs plans
        _tuples.clear()
        _stand_ins.clear()
    stand_in = _stand_ins.setdefault(content, object())
    _tuples[id(value)] = (value, stand_in)
    return stand_in


def _content(value: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A tuple's values with their classes, floats by their bits; None for other contents."""
    content: list[Any] = [type(value)]
    for x in value:
        cls = _class_of(x)
        if cls in BY_VALUE:
            content += (cls, x)
        elif cls is float:
            content += (cls, x.hex())
        elif cls is tuple or (hasattr(cls, "_fields") and issubclass(cls, tuple)):
            inner = _content(x)
            if inner is None:
                return None
            content.append(inner)
        else:
            return None
    return tuple(content)


def _is_constant(value: Any) -> bool:
    """Whether a value is a class, or the name of a dtype or a device, of a library."""
    if isinstance(value, type):
        return _is_library(value.__module__)
    cls = cast("type[Any]", type(value))
    return issubclass(cls, np.dtype) or (cls.__module__ == "torch" and cls.__name__ in CONSTANTS)


def _is_pure(value: Any) -> bool:
    """Whether a value is a function of a library, of its arguments alone."""
    if isinstance(value, np.ufunc):
        return True
    owner: Any = getattr(value, "__self__", None)
    is_free = owner is None or isinstance(owner, types.ModuleType | type)
    return type(value) is types.BuiltinFunctionType and is_free and value.__name__ in PURE


@functools.lru_cache(maxsize=512)
def _names(code: types.CodeType) -> Names:
    """The names in a function's code and in the functions defined inside it."""
    scope: dict[str, None] = {}
    attributes: dict[str, None] = {}
    is_plain = True
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            scope[str(step.argval)] = None
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes[str(step.argval)] = None
        is_local = step.argval in code.co_cellvars
        is_plain &= not step.opname.startswith(IMPURE)
        is_plain &= not step.opname.startswith(("STORE_DEREF", "DELETE_DEREF")) or is_local
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _names(constant)
            scope |= dict.fromkeys(inner.scope)
            attributes |= dict.fromkeys(inner.attributes)
            is_plain &= inner.is_plain
    return Names(tuple(scope), tuple(attributes), is_plain)
