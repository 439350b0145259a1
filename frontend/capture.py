"""What a traced function captures: arrays become stand-ins, wherever the function finds them.

A function finds arrays in its closure, its module's globals, its default arguments, in tuples, lists
and dicts of these, in functions of these, in bound arguments of `functools.partial`, and in the
attributes of the object whose method it is. Each array that is read becomes an argument of the
kernel, once, under the first name that it is found by. An array of rank 0 stands for its number.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from attn_mlir.dialect.attn.program import TENSOR_DTYPES, CapturedTensor
from attn_mlir.errors import SpecError
from attn_mlir.excerpt import Spot
from attn_mlir.runtime.tensors import TensorView, view

if TYPE_CHECKING:
    from attn_mlir.graph import Graph

LIBRARIES = ("numpy", "torch", "jax", "cupy")  # their functions are called as they are
RESERVED = {  # arguments and sizes that every kernel has
    *("q", "k", "v", "o", "lse", "scale", "q_descale", "k_descale", "v_descale"),
    *("block_counts", "block_indices"),
    *("batch", "sq", "sk", "heads", "head_dim"),
}


class Captures:
    """The arrays and functions that have been met.

    Attributes:
      arrays: what has been read, by the name of the kernel's argument.
    """

    def __init__(self, graph: Graph):
        self.arrays: dict[str, Any] = {}
        self._graph = graph
        self._functions: dict[int, Any] = {}  # id -> (the function, kept alive, its copy)
        self._views: dict[
            int, tuple[Any, TensorView]
        ] = {}  # id -> (the array, kept alive, its view)
        self._numbers: dict[int, int] = {}

    def function(self, role: str, function: Any, names: Sequence[str]) -> Callable[..., Any]:
        """The function with stand-ins for what it captures.

        Args:
          role: `score_mod` or `mask_mod`, for messages.
          function: a function, a method, a `functools.partial`, or an object that can be called.
          names: of the arguments that it will be called with.

        Raises:
          SpecError: something else, or one that does not take these arguments.
        """
        target: Any = function
        if not isinstance(function, types.FunctionType | types.MethodType | functools.partial):
            target = getattr(cast(object, function), "__call__", None)  # noqa: B004
        if not isinstance(target, types.FunctionType | types.MethodType | functools.partial):
            raise SpecError(f"{role} must be a Python function, got {function!r:.60}")
        target = cast("Callable[..., Any]", target)
        try:
            inspect.signature(target).bind(*names)
        except TypeError as error:
            name = getattr(cast(object, function), "__name__", role)
            spot = self.start(function)
            where = "" if spot is None else f"{spot.code.co_filename}:{spot.line}: "
            raise SpecError(f"{where}{name} must take ({', '.join(names)}): {error}") from error
        return self.stand_in(role, target)

    def start(self, function: Any) -> Spot | None:
        """Where a function begins."""
        while isinstance(function, functools.partial):
            function = cast("Any", function).func
        code = getattr(function, "__code__", None)
        if code is None:
            code = getattr(
                vars(cast("type[Any]", type(function))).get("__call__"), "__code__", None
            )
        return Spot(code, code.co_firstlineno) if isinstance(code, types.CodeType) else None

    def array(self, name: str, value: Any) -> Stand:
        """The stand-in of an array."""
        if id(value) not in self._views:
            self._views[id(value)] = (value, view(value, name))
        return Stand(self, self._graph, name, value, self._views[id(value)][1])

    def stand_in(self, name: str, value: Any) -> Any:
        """What the traced function gets to see in the place of something that it captures."""
        kind = cast("type[Any]", type(value))
        if hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__"):
            stand = self.array(name, value)
            return stand if stand.rank else self._graph.load(stand.number, [0])
        if kind is tuple or kind is list:
            items: list[Any] = [self.stand_in(f"{name}_{i}", x) for i, x in enumerate(value)]
            return items if kind is list else tuple(items)
        if kind is dict:
            return {key: self.stand_in(f"{name}_{key}", item) for key, item in value.items()}
        if isinstance(value, types.FunctionType):
            return self._rebound(value)
        if isinstance(value, types.MethodType):
            owner = _Owner(self, value.__self__)
            return functools.partial(self.stand_in(name, value.__func__), owner)
        if isinstance(value, functools.partial):
            known = cast("functools.partial[Any]", value)
            args = self.stand_in(name, tuple(known.args))
            return functools.partial(
                self.stand_in(name, known.func), *args, **self.stand_in(name, dict(known.keywords))
            )
        return value

    def register(self, name: str, value: Any, found: TensorView) -> int:
        """The number of an array among the kernel's arguments, which it becomes if it is none."""
        if id(value) in self._numbers:
            return self._numbers[id(value)]
        if found.dtype not in TENSOR_DTYPES:
            raise self._graph.refuse(
                f"captures {name} of dtype {found.dtype}; allowed are {', '.join(TENSOR_DTYPES)}"
            )
        name = name if name.isidentifier() and name.isascii() else "captured"
        unique, count = name, 1
        while unique in self.arrays or unique in RESERVED:
            unique, count = f"{name}_c{count}", count + 1
        self._graph.tensors.append(CapturedTensor(unique, found.dtype, max(len(found.shape), 1)))
        number = self._numbers[id(value)] = len(self._graph.tensors) - 1
        # one number is passed as an array of one element
        one = dataclasses.replace(found, shape=(1,), strides=(1,))
        self.arrays[unique] = value if found.shape else one
        return number

    def _rebound(self, function: types.FunctionType) -> Any:
        """A copy of a function whose closure, globals and defaults hold stand-ins.

        A library's functions stay as they are, but for those that call the user's: PyTorch's
        `and_masks` returns one.
        """
        is_library = _is_library(function)
        if is_library and not _holds_other(function, frozenset()):
            return function
        if id(function) in self._functions:
            return self._functions[id(function)][1]
        code = function.__code__
        cells = tuple(types.CellType() for _ in code.co_freevars)
        bound = types.FunctionType(code, _Scope(self, function.__globals__), closure=cells)
        self._functions[id(function)] = (function, bound)
        if not is_library:
            self._remember(code)
        for cell, name, source in zip(
            cells, code.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                cell.cell_contents = self.stand_in(name, source.cell_contents)
            except ValueError:  # a variable that is not set yet
                continue
        names = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        bound.__defaults__ = tuple(
            self.stand_in(name, value)
            for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True)
        )
        bound.__kwdefaults__ = {
            name: self.stand_in(name, value)
            for name, value in (function.__kwdefaults__ or {}).items()
        }
        return bound

    def _remember(self, code: types.CodeType) -> None:
        """Lets messages point into a function and the functions written inside it."""
        self._graph.codes.add(code)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._remember(constant)


def _is_library(function: types.FunctionType) -> bool:
    """Whether a function belongs to a library, whose code is nobody's modifier."""
    module = function.__module__ or ""
    return module.partition(".")[0] in LIBRARIES or module == "attn_mlir.trace"


def _holds_other(function: types.FunctionType, seen: frozenset[int]) -> bool:
    """Whether a library's function has one in its closure that is none of a library."""
    seen |= {id(function)}
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # a variable that is not set yet
            continue
        items = cast("Sequence[Any]", content) if isinstance(content, tuple | list) else (content,)
        for item in items:
            if not isinstance(item, types.FunctionType) or id(item) in seen:
                continue
            if not _is_library(item) or _holds_other(item, seen):
                return True
    return False


class _Scope(dict[str, Any]):
    """A function's globals; arrays among them become stand-ins when they are looked up."""

    def __init__(self, captures: Captures, scope: dict[str, Any]):
        super().__init__(scope)
        self._captures = captures

    def __getitem__(self, name: str) -> Any:
        return self._captures.stand_in(name, super().__getitem__(name))


class _Owner:
    """The object whose method is traced."""

    def __init__(self, captures: Captures, owner: object):
        self._captures = captures
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        return self._captures.stand_in(name, getattr(self._owner, name))


class Stand:
    """A stand-in for a captured array, which can only be indexed down to one element."""

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(
        self,
        captures: Captures,
        graph: Graph,
        name: str,
        value: Any,
        found: TensorView,
        prefix: tuple[Any, ...] = (),
    ):
        self._captures = captures
        self._graph = graph
        self._name = name
        self._value = value
        self._view = found
        self._prefix = prefix

    @property
    def rank(self) -> int:
        """Dimensions of the array."""
        return len(self._view.shape)

    @property
    def number(self) -> int:
        """Which captured tensor it is; it becomes one when this is asked for."""
        return self._captures.register(self._name, self._value, self._view)

    def __getitem__(self, index: Any) -> Any:
        further = cast("tuple[Any, ...]", index if isinstance(index, tuple) else (index,))
        coords = (*self._prefix, *further)
        if any(isinstance(c, slice | list | type(None) | type(...)) for c in coords):
            raise self._graph.refuse(
                f"slices {self._name}; a captured array is indexed down to one element"
            )
        if len(coords) > self.rank:
            raise self._graph.refuse(
                f"indexes {self._name} with {len(coords)} coordinates; it has {self.rank}"
            )
        if len(coords) < self.rank:
            return Stand(self._captures, self._graph, self._name, self._value, self._view, coords)
        return self._graph.load(self.number, coords)

    def refuse(self, *_args: Any, **_options: Any) -> Any:
        """Says that an array is no number.

        Raises:
          SpecError: always.
        """
        what = "as a number"
        if self._prefix:
            what = f"as a number after {len(self._prefix)} of {self.rank} coordinates"
        raise self._graph.refuse(
            f"uses {self._name} {what}; a captured array is indexed down to one element"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._graph.refuse(
            f"uses {self._name}.{name}; a captured array can only be indexed, so compute "
            f"{self._name}.{name} outside"
        )

    __array_ufunc__ = __array_function__ = refuse
    __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = refuse

    @classmethod
    def __torch_function__(
        cls, function: Any, kinds: Any, args: Sequence[Any] = (), options: Any = None
    ) -> Any:
        next(arg for arg in args if isinstance(arg, Stand)).refuse()


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
    setattr(Stand, f"__{_name}__", Stand.__array_ufunc__)
    setattr(Stand, f"__r{_name}__", Stand.__array_ufunc__)
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "abs", "invert"):
    setattr(Stand, f"__{_name}__", Stand.__array_ufunc__)
