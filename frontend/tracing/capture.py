"""Replaces the arrays that a traced function captures by stand-ins.

A function finds arrays in its closure, its module's globals, its default arguments, in functions of
these and bound arguments of `functools.partial`, in containers, and in the attributes of objects,
modules and classes, such as the `self` of the method that it is defined in. Each array that is read
becomes an argument of the kernel, once, under the first name that it is found by. What a function
writes into what it captures is refused: it runs once, when it is traced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from attn_mlir.dialect.attn.programs.program import TENSOR_DTYPES, CapturedTensor
from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.tensors import extended, view
from attn_mlir.runtime.call.torch_tensors import check_tensor, is_tensor
from attn_mlir.tracing.captured_array import ArrayProxy
from attn_mlir.tracing.captured_object import (
    Items,
    Members,
    Proxy,
    Table,
    is_of_torch,
    is_plain,
    is_torch_module,
)
from attn_mlir.tracing.excerpt import Spot, located
from attn_mlir.tracing.traced import Traced

if TYPE_CHECKING:
    from attn_mlir.tracing.graph import Graph

LIBRARIES = ("numpy", "torch", "jax", "cupy")  # their functions are called as they are
RESERVED = {  # arguments and sizes that every kernel has
    *("q", "k", "v", "o", "lse", "scale", "q_descale", "k_descale", "v_descale"),
    *("do", "delta", "dlse", "dq", "dk", "dv", "row_weights"),
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
        graph.captures = self
        self._functions: dict[int, _Copy] = {}  # id -> the function, kept alive, and its copy
        self._stand_ins: dict[
            int, tuple[Any, Any]
        ] = {}  # id -> (the object, kept alive, its stand-in)
        self._tensors: dict[
            int, tuple[Any, int]
        ] = {}  # id -> (the array, kept alive, which tensor)

    @property
    def sources(self) -> dict[str, Any]:
        """Arrays that have been read, as they were captured, by the names of arguments."""
        tensors = self._graph.tensors
        return {tensors[which].name: value for value, which in self._tensors.values()}

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
        if is_torch_module(function):
            target = function.forward
        elif not isinstance(function, types.FunctionType | types.MethodType | functools.partial):
            target = getattr(cast(object, function), "__call__", None)  # noqa: B004
        if not isinstance(target, types.FunctionType | types.MethodType | functools.partial):
            raise SpecError(
                f"{role} must be a Python function, got {shown(cast(object, function))}"
            )
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

    def array(self, name: str, value: Any) -> ArrayProxy:
        """The stand-in of an array.

        Raises:
          SpecError: a tensor that stands for something else than its memory holds.
        """
        if is_tensor(value):
            try:
                check_tensor(value, name)
            except SpecError as error:
                raise self._graph.refuse(f"captures what no kernel reads: {error}") from error
        return ArrayProxy(self, self._graph, name, value)

    def stand_in(self, name: str, value: Any) -> Any:
        """The stand-in of a captured value."""
        if isinstance(value, ArrayProxy | Traced) or type(value) is Proxy:
            return value
        if hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__"):
            if not isinstance(value, type | types.ModuleType):
                return self.array(name, value)
        if isinstance(value, types.FunctionType):
            return self._rebound(value)
        if isinstance(value, types.MethodType):
            owner = self.stand_in("self", value.__self__)
            return functools.partial(self.stand_in(name, value.__func__), owner)
        if isinstance(value, functools.partial):
            partial = cast("functools.partial[Any]", value)
            args = tuple(self.stand_in(name, arg) for arg in partial.args)
            options = {key: self.stand_in(key, arg) for key, arg in partial.keywords.items()}
            return functools.partial(self.stand_in(name, partial.func), *args, **options)
        if isinstance(value, functools._lru_cache_wrapper):  # pyright: ignore[reportPrivateUsage]
            return self.stand_in(name, cast("Any", value).__wrapped__)
        if isinstance(value, tuple):
            return self._tuple(name, cast("tuple[Any, ...]", value))
        if is_plain(value):
            return value
        if id(value) not in self._stand_ins:
            self._container(name, value)
        return self._stand_ins[id(value)][1]

    def _tuple(self, name: str, value: tuple[Any, ...]) -> Any:
        """A tuple of the same class, a named one as well."""
        fields = getattr(value, "_fields", range(len(value)))
        items = [self.stand_in(f"{name}_{i}", x) for i, x in zip(fields, value, strict=True)]
        if all(mine is item for mine, item in zip(items, value, strict=True)):
            return value
        of_class = cast("Any", type(value))
        if hasattr(of_class, "n_sequence_fields"):  # made by C, such as torch.return_types
            return of_class(items)
        return cast("Any", tuple).__new__(of_class, items)

    def _container(self, name: str, value: Any) -> None:
        """Makes the stand-in of a container or an object; one that holds itself finds it."""
        of_class = cast("type[Any]", type(value))
        made: Any = Proxy(self, name, value)
        if of_class in (list, dict, set):
            made = {list: Items, dict: Table, set: Members}[of_class]()
            made.captures, made.label = self, name
        self._stand_ins[id(value)] = (value, made)
        if of_class is list:
            cast("Any", list).extend(
                made, [self.stand_in(f"{name}_{i}", x) for i, x in enumerate(value)]
            )
        elif of_class is dict:
            for key, item in value.items():
                cast("Any", dict).__setitem__(made, key, self.stand_in(f"{name}_{key}", item))
        elif of_class is set:
            cast("Any", set).update(made, value)

    def call_of(self, name: str, target: Any) -> Callable[..., Any]:
        """The function that calling a captured object runs."""
        if isinstance(target, type):
            return target
        hooks = ("_forward_hooks", "_forward_pre_hooks")
        if is_torch_module(target) and not any(getattr(target, hook) for hook in hooks):
            return self.stand_in(name, target.forward)
        return self.stand_in(name, target.__call__)

    def refuse_writing(self, what: str) -> SpecError:
        """The error for a function that writes into what it captures."""
        return self._graph.refuse(
            f"{what}, which it captures; what a function captures can only be read: it runs once, "
            "when it is traced"
        )

    def check_unwritten(self) -> None:
        """Refuses functions that have assigned to variables outside themselves.

        Raises:
          SpecError: names the function, the variable and the line.
        """
        for copy in self._functions.values():
            if (name := copy.written()) is None:
                continue
            code = copy.made.__code__
            what = (
                f"{copy.made.__name__} assigns to {name}, a variable outside itself; it runs once, "
                "when it is traced, so what it captures can only be read"
            )
            raise SpecError(located(what, _assignment(code, name)))

    def register(self, name: str, value: Any) -> int:
        """Which of the graph's tensors an array is; it becomes one, and an argument of the kernel.

        Raises:
          SpecError: a dtype or a layout that no kernel reads, or an array that wants a gradient.
        """
        if id(value) in self._tensors:
            return self._tensors[id(value)][1]
        try:
            array = view(value, name)
        except SpecError as error:
            raise self._graph.refuse(f"captures an array that no kernel reads: {error}") from error
        if array.dtype not in TENSOR_DTYPES:
            raise self._graph.refuse(
                f"captures {name} of dtype {array.dtype}; allowed are {', '.join(TENSOR_DTYPES)}"
            )
        name = name if name.isidentifier() and name.isascii() else "captured"
        unique, count = name, 1
        while unique in self.arrays or unique in RESERVED:
            unique, count = f"{name}_c{count}", count + 1
        is_dense = bool(array.shape) and array.strides[-1] == 1
        self._graph.tensors.append(
            CapturedTensor(unique, array.dtype, len(array.shape) + (not is_dense))
        )
        which = len(self._graph.tensors) - 1
        self._tensors[id(value)] = (value, which)
        if getattr(value, "requires_grad", False):  # what was asked for without gradients stays so
            value = value.detach()
        self.arrays[unique] = value if is_dense else extended(array)
        return which

    def _rebound(self, function: types.FunctionType) -> Any:
        """A copy of a function whose closure, globals and defaults hold stand-ins.

        A library's functions stay as they are, but for those that call the user's: PyTorch's
        `and_masks` returns one.
        """
        is_library = _is_library(function)
        if is_library and not _holds_other(function, frozenset()):
            return function
        if id(function) in self._functions:
            return self._functions[id(function)].made
        code = function.__code__
        cells = tuple(types.CellType() for _ in code.co_freevars)
        bound = types.FunctionType(code, _Scope(self, function.__globals__), closure=cells)
        copy = self._functions[id(function)] = _Copy(function, bound)
        if not is_library:
            self._remember(code)
            self._graph.uses_torch |= _names_torch(function)
        for cell, name, source in zip(
            cells, code.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                content = source.cell_contents
            except ValueError:  # a variable that is not set yet
                continue
            cell.cell_contents = copy.variables[name] = self.stand_in(name, content)
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


@dataclasses.dataclass
class _Copy:
    """A traced function, and the copy of it that runs.

    Attributes:
      variables: what those of the copy's closure were set to before it ran.
    """

    function: types.FunctionType
    made: types.FunctionType
    variables: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    def written(self) -> str | None:
        """A variable outside the function that running the copy has changed."""
        cells = zip(self.made.__code__.co_freevars, self.made.__closure__ or (), strict=True)
        for name, cell in cells:
            if name in self.variables and cell.cell_contents is not self.variables[name]:
                return name
        before, after = (cast("Any", f).__globals__ for f in (self.function, self.made))
        for name in sorted(_global_assignments(self.made.__code__)):
            missing = object()
            if before.get(name, missing) is not cast("Any", dict).get(after, name, missing):
                return name
        return None


def _codes(code: types.CodeType) -> list[types.CodeType]:
    """A function's code and that of the functions written inside it."""
    inner = [x for x in code.co_consts if isinstance(x, types.CodeType)]
    return [code, *(nested for x in inner for nested in _codes(x))]


@functools.lru_cache(maxsize=256)
def _global_assignments(code: types.CodeType) -> set[str]:
    return {
        str(step.argval)
        for inner in _codes(code)
        for step in dis.get_instructions(inner)
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
    }


def _assignment(code: types.CodeType, name: str) -> Spot | None:
    """Where a function assigns to a variable outside itself."""
    for inner in _codes(code):
        for step in dis.get_instructions(inner):
            line = None if step.positions is None else step.positions.lineno
            if step.opname in _ASSIGNING and step.argval == name and line:
                return Spot(inner, line, step.offset)
    return None


_ASSIGNING = ("STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_DEREF")


def _names_torch(function: types.FunctionType) -> bool:
    """Whether PyTorch, or something of it, is among what a function's code can name."""
    used = {name for code in _codes(function.__code__) for name in code.co_names}
    values = [function.__globals__.get(name) for name in used]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # a variable that is not set yet
            values.append(cell.cell_contents)
    modules = [x.__name__ for x in values if isinstance(x, types.ModuleType)]
    return any(name.partition(".")[0] == "torch" for name in modules) or any(
        map(is_of_torch, values)
    )


def _is_library(function: types.FunctionType) -> bool:
    """Whether a function belongs to a library, whose code is nobody's modifier."""
    module = function.__module__ or ""
    return module.partition(".")[0] in LIBRARIES or module == "attn_mlir.trace"


def _holds_other(function: types.FunctionType, visited: frozenset[int]) -> bool:
    """Whether a library's function has one in its closure that is none of a library."""
    visited |= {id(function)}
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # a variable that is not set yet
            continue
        items = cast("Sequence[Any]", content) if isinstance(content, tuple | list) else (content,)
        for item in items:
            if not isinstance(item, types.FunctionType) or id(item) in visited:
                continue
            if not _is_library(item) or _holds_other(item, visited):
                return True
    return False


class _Scope(dict[str, Any]):
    """A function's globals; arrays among them become stand-ins when they are looked up."""

    def __init__(self, captures: Captures, scope: dict[str, Any]):
        super().__init__(scope)
        self._captures = captures

    def __getitem__(self, name: str) -> Any:
        return self._captures.stand_in(name, super().__getitem__(name))
