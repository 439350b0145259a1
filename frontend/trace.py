"""Traces Python functions of one score into programs: `score_mod` and `mask_mod`.

The function runs once, with stand-ins for the score and its coordinates. Arithmetic, comparisons,
`&|~^`, `where`, `exp`, `exp2`, `log`, `log2`, `tanh`, `sigmoid`, `sqrt`, `abs`, `minimum` and
`maximum`, by this module, numpy or torch, and indexing of arrays that the function captures, are
written down; Python numbers become constants. What depends on a value, such as `if`, cannot be.
"""

from __future__ import annotations

import builtins
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from attn_mlir.dialect.attn.program import (
    ARGUMENTS,
    BINARY,
    COMPARISONS,
    FLOAT_ONLY,
    INTEGER_ONLY,
    LOGICAL,
    TENSOR_DTYPES,
    UNARY,
    CapturedTensor,
    Node,
    Program,
    load_type,
)
from attn_mlir.errors import SpecError
from attn_mlir.runtime.tensors import view

ScoreMod = Callable[[Any, Any, Any, Any, Any], Any]
MaskMod = Callable[[Any, Any, Any, Any], Any]

_BY_NAME = {  # functions of numpy and torch that are operations here
    **{name: name for name in ("exp", "exp2", "log", "log2", "tanh", "sqrt", "abs", "where")},
    "absolute": "abs",
    "negative": "neg",
    "minimum": "min",
    "maximum": "max",
    "logical_and": "and",
    "logical_or": "or",
    "logical_not": "not",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_not": "not",
    "invert": "not",
    "sigmoid": "sigmoid",
    "add": "add",
    "subtract": "sub",
    "sub": "sub",
    "multiply": "mul",
    "mul": "mul",
    "divide": "div",
    "true_divide": "div",
    "div": "div",
    "floor_divide": "floordiv",
    "remainder": "mod",
    "equal": "eq",
    "eq": "eq",
    "not_equal": "ne",
    "ne": "ne",
    "less": "lt",
    "lt": "lt",
    "less_equal": "le",
    "le": "le",
    "greater": "gt",
    "gt": "gt",
    "greater_equal": "ge",
    "ge": "ge",
}


class _Graph:
    """The nodes so far; equal ones are one."""

    def __init__(self, code: types.CodeType):
        self.nodes: list[Node] = []
        self.tensors: list[CapturedTensor] = []
        self.code = code
        self._numbers: dict[Node, int] = {}

    def add(self, node: Node) -> Traced:
        """A stand-in for a node."""
        if node not in self._numbers:
            self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return Traced(self, self._numbers[node])

    def lift(self, value: Any) -> Traced:
        """A stand-in for a stand-in or a Python number."""
        if isinstance(value, Traced):
            return value
        if isinstance(value, bool):
            return self.add(Node("constant", "i1", value=value))
        if isinstance(value, int):
            return self.add(Node("constant", "i32", value=value))
        if isinstance(value, float):
            return self.add(Node("constant", "f32", value=value))
        item = getattr(value, "item", None)
        if callable(item) and getattr(value, "shape", None) == ():
            return self.lift(item())
        raise self.refuse(f"cannot use {type(value).__name__} {value!r:.40} as a number")

    def refuse(self, what: str) -> SpecError:
        """The error, with the user's line."""
        frame = sys._getframe()  # the call stack is where the line is
        place = f"{self.code.co_filename}:{self.code.co_firstlineno}"
        while frame is not None:
            if frame.f_code is self.code:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                break
            frame = frame.f_back
        return SpecError(f"{place}: {self.code.co_name} {what}")

    def apply(self, op: str, *operands: Any) -> Traced:
        """An operation on stand-ins and numbers, with Python's rules for mixed types."""
        args = [self.lift(operand) for operand in operands]
        if op == "sigmoid":
            return 1.0 / (1.0 + self.apply("exp", -args[0]))
        if op == "where":
            condition, *choices = args
            if condition.type != "i1":
                raise self.refuse(f"gives where() a condition of type {condition.type}, not i1")
            a, b = self._common(choices)
            return self.add(Node("where", a.type, (condition.number, a.number, b.number)))
        if op not in UNARY and op not in BINARY:
            raise self.refuse(f"uses {op}, which cannot be traced")
        if op in FLOAT_ONLY:
            args = [self.cast(arg, "f32") for arg in args]
        elif op in LOGICAL and any(arg.type == "f32" for arg in args):
            raise self.refuse(f"applies {op} to a float")
        elif op not in LOGICAL and op not in COMPARISONS:
            args = [self.cast(arg, "i32") if arg.type == "i1" else arg for arg in args]
        args = self._common(args)
        if op in INTEGER_ONLY and args[0].type != "i32":
            raise self.refuse(f"applies {op} to floats; it is for integers")
        if op == "not" and args[0].type != "i1":
            return args[0] ^ -1
        result = "i1" if op in COMPARISONS else args[0].type
        return self.add(Node(op, result, tuple(arg.number for arg in args)))

    def _common(self, args: Sequence[Traced]) -> list[Traced]:
        """Operands in one type: f32 before i32 before i1."""
        kinds = [arg.type for arg in args]
        wanted = next(kind for kind in ("f32", "i32", "i1") if kind in kinds)
        return [self.cast(arg, wanted) for arg in args]

    def cast(self, arg: Traced, wanted: str) -> Traced:
        """The same value in another type."""
        if arg.type == wanted:
            return arg
        node = self.nodes[arg.number]
        if node.op == "constant" and wanted == "f32" and node.value is not None:
            return self.add(Node("constant", "f32", value=float(node.value)))
        return self.add(Node("cast", wanted, (arg.number,)))


class Traced:
    """A stand-in for a number that exists only on the device."""

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, graph: _Graph, number: int):
        self._graph = graph
        self.number = number

    @property
    def type(self) -> str:
        """f32, i32 or i1."""
        return self._graph.nodes[self.number].type

    def to(self, dtype: object) -> Traced:
        """The value as another type: float, int, or a dtype of torch or numpy."""
        text = str(getattr(dtype, "__name__", dtype))
        return self._graph.cast(self, "f32" if "float" in text else "i32")

    def float(self) -> Traced:
        """The value as f32."""
        return self._graph.cast(self, "f32")

    def __bool__(self) -> bool:
        raise self._graph.refuse(
            "decides in Python over a traced value (if, and, or, not): use where(), &, |, ~"
        )

    def __float__(self) -> builtins.float:
        raise self._graph.refuse(
            "turns a traced value into a Python number: use exp, tanh, ... of attn_mlir.trace"
        )

    __int__ = __float__  # pyright: ignore[reportAssignmentType]
    __index__ = __float__  # pyright: ignore[reportAssignmentType]

    def __iter__(self) -> Any:
        raise self._graph.refuse("iterates over a traced value, which is one number")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            raise self._graph.refuse(f"uses {ufunc.__name__}.{method}, which cannot be traced")
        return self._call(ufunc.__name__, inputs)

    def __array_function__(
        self, function: Any, kinds: Any, args: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        return self._call(function.__name__, args, options)

    @classmethod
    def __torch_function__(
        cls, function: Any, kinds: Any, args: Sequence[Any] = (), options: Any = None
    ) -> Any:
        stand_in = next(arg for arg in args if isinstance(arg, Traced))
        return stand_in._call(getattr(function, "__name__", str(function)), args, options)

    def _call(self, name: str, args: Sequence[Any], options: Any = None) -> Traced:
        if name not in _BY_NAME or options:
            raise self._graph.refuse(f"calls {name}, which cannot be traced")
        return self._graph.apply(_BY_NAME[name], *args)


def _operator(op: str, reflected: bool) -> Callable[..., Traced]:
    def apply(self: Traced, *others: Any) -> Traced:
        operands = (*others, self) if reflected else (self, *others)
        return self._graph.apply(op, *operands)  # pyright: ignore[reportPrivateUsage]

    return apply


for _name, _op in (
    *((op, op) for op in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor")),
    ("truediv", "div"),
    ("lshift", "shl"),
    ("rshift", "shr"),
):
    setattr(Traced, f"__{_name}__", _operator(_op, reflected=False))
    setattr(Traced, f"__r{_name}__", _operator(_op, reflected=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "abs"):
    setattr(Traced, f"__{_name}__", _operator(_name, reflected=False))
Traced.__invert__ = _operator("not", reflected=False)  # pyright: ignore[reportAttributeAccessIssue]


class _Stand:
    """A stand-in for a captured array, which can only be indexed down to one element."""

    def __init__(self, graph: _Graph, number: int):
        self._graph = graph
        self._number = number

    def __getitem__(self, index: Any) -> Traced:
        tensor = self._graph.tensors[self._number]
        coords = index if isinstance(index, tuple) else (index,)
        if len(coords) != tensor.rank:
            raise self._graph.refuse(
                f"indexes {tensor.name} with {len(coords)} coordinates, it has {tensor.rank}"
            )
        args = [self._graph.lift(coord) for coord in coords]
        if any(arg.type != "i32" for arg in args):
            raise self._graph.refuse(f"indexes {tensor.name} with something that is no integer")
        numbers = tuple(arg.number for arg in args)
        return self._graph.add(Node("load", load_type(tensor.dtype), numbers, self._number))

    def __getattr__(self, name: str) -> Any:
        tensor = self._graph.tensors[self._number]
        raise self._graph.refuse(f"uses {tensor.name}.{name}: a captured array can be indexed only")


def trace(
    score_mod: ScoreMod | None, mask_mod: MaskMod | None
) -> tuple[Program | None, dict[str, Any]]:
    """Traces a score modifier and a mask predicate into one program.

    Args:
      score_mod: `score_mod(score, b, h, q, k)` returns the modified score.
      mask_mod: `mask_mod(b, h, q, k)` returns whether the score counts.

    Returns:
      The program, None when there is nothing to do, and the captured arrays by name.

    Raises:
      SpecError: a function that cannot be traced; the message names its file and line.
    """
    function = score_mod if score_mod is not None else mask_mod
    if function is None:
        return None, {}
    graph = _Graph(_code(function))
    arrays: dict[str, Any] = {}
    coordinates = [graph.add(_argument(name)) for name in ARGUMENTS]
    score = coordinates[0]
    if score_mod is not None:
        made = _run(score_mod, graph, arrays, coordinates)
        score = graph.cast(graph.lift(made), "f32")
    keeps: tuple[int, ...] = ()
    if mask_mod is not None:
        condition = graph.lift(_run(mask_mod, graph, arrays, coordinates[1:]))
        if condition.type != "i1":
            raise graph.refuse(f"returns {condition.type}, a mask_mod returns a condition")
        keeps = (condition.number,)
    return Program(tuple(graph.nodes), score.number, keeps, tuple(graph.tensors)), arrays


def _argument(name: str) -> Node:
    return Node("argument", "f32" if name == "score" else "i32", value=name)


def _code(function: Any) -> types.CodeType:
    if not isinstance(function, types.FunctionType):
        raise SpecError(f"a score_mod or mask_mod is a Python function, got {function!r:.60}")
    return function.__code__


def _run(function: Any, graph: _Graph, arrays: dict[str, Any], arguments: Sequence[Traced]) -> Any:
    """Calls a function with stand-ins for its arguments and for the arrays that it captures."""
    graph.code = _code(function)
    count = len(inspect.signature(function).parameters)
    if count != len(arguments):
        names = ", ".join(ARGUMENTS[-len(arguments) :])
        raise SpecError(f"{function.__name__} takes {count} arguments, expected ({names})")

    def stand_in(name: str, value: Any) -> Any:
        if not hasattr(value, "__dlpack__") and not hasattr(value, "__cuda_array_interface__"):
            return value
        for number, tensor in enumerate(graph.tensors):
            if arrays[tensor.name] is value:
                return _Stand(graph, number)
        unique = name if name not in arrays else f"{name}{len(arrays)}"
        found = view(value, unique)
        if found.dtype not in TENSOR_DTYPES:
            allowed = ", ".join(TENSOR_DTYPES)
            raise SpecError(f"{name} has dtype {found.dtype}, a captured array is of {allowed}")
        graph.tensors.append(CapturedTensor(unique, found.dtype, len(found.shape)))
        arrays[unique] = value
        return _Stand(graph, len(graph.tensors) - 1)

    cells = tuple(
        types.CellType(stand_in(name, cell.cell_contents))
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        )
    )
    names = function.__code__.co_names
    scope = {
        name: stand_in(name, value) if name in names else value
        for name, value in function.__globals__.items()
    }
    bound = types.FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, cells
    )
    return bound(*arguments)


def _function(op: str) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        stand_in = next((arg for arg in args if isinstance(arg, Traced)), None)
        if stand_in is None:
            raise SpecError(f"{op} of attn_mlir.trace is for score_mod and mask_mod functions")
        return stand_in._graph.apply(op, *args)  # pyright: ignore[reportPrivateUsage]

    apply.__name__ = op
    apply.__doc__ = f"`{op}` of traced values and numbers."
    return apply


exp = _function("exp")
exp2 = _function("exp2")
log = _function("log")
log2 = _function("log2")
tanh = _function("tanh")
sigmoid = _function("sigmoid")
sqrt = _function("sqrt")
minimum = _function("min")
maximum = _function("max")
where = _function("where")
