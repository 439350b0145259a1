"""Stand-ins for numbers of the device, and the graph of what a Python function does with them."""

from __future__ import annotations

import builtins
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

from attn_mlir.capture import Stand
from attn_mlir.dialect.attn.program import (
    BINARY,
    COMPARISONS,
    FLOAT_ONLY,
    INTEGER_ONLY,
    LOGICAL,
    ORDERED,
    UNARY,
    CapturedTensor,
    Node,
    load_type,
)
from attn_mlir.errors import SpecError
from attn_mlir.excerpt import frame_of_caller, place

MAX_POWER = 16  # ** unfolds into multiplications
INT32 = range(-(2**31), 2**31)

_BY_NAME = {  # functions of numpy and torch, and methods of tensors, that are operations here
    "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "tanh": "tanh", "sqrt": "sqrt",
    "floor": "floor", "ceil": "ceil", "where": "where",
    "abs": "abs", "absolute": "abs", "fabs": "abs", "neg": "neg", "negative": "neg",
    "add": "add", "sub": "sub", "subtract": "sub", "mul": "mul", "multiply": "mul",
    "div": "div", "divide": "div", "true_divide": "div",
    "floor_divide": "floordiv", "mod": "mod", "remainder": "mod",
    "min": "min", "minimum": "min", "fmin": "min", "max": "max", "maximum": "max", "fmax": "max",
    "logical_and": "and", "logical_or": "or", "logical_xor": "xor", "logical_not": "not",
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "bitwise_not": "not",
    "and": "and", "or": "or", "xor": "xor", "invert": "not", "bitwise_invert": "not",
    "left_shift": "shl", "bitwise_left_shift": "shl",
    "right_shift": "shr", "bitwise_right_shift": "shr",
    "eq": "eq", "equal": "eq", "ne": "ne", "not_equal": "ne", "lt": "lt", "less": "lt",
    "le": "le", "less_equal": "le", "gt": "gt", "greater": "gt", "ge": "ge", "greater_equal": "ge",
}  # fmt: skip


class Graph:
    """The nodes so far; equal ones are one.

    Attributes:
      nodes: in order of evaluation.
      tensors: captured tensors in the order of their first use.
      codes: code of the functions being traced, to find the user's line by.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tensors: list[CapturedTensor] = []
        self.codes: set[types.CodeType] = set()
        self.function = "the function"
        self._numbers: dict[str, int] = {}

    def add(self, node: Node) -> Traced:
        """A stand-in for a node."""
        key = repr(node)  # tells 0.0 from -0.0
        if key not in self._numbers:
            self._numbers[key] = len(self.nodes)
            self.nodes.append(node)
        return Traced(self, self._numbers[key])

    def load(self, number: int, coordinates: Sequence[Any]) -> Traced:
        """A stand-in for an element of a captured tensor; coordinates are moved into it."""
        tensor = self.tensors[number]
        args = [self.lift(coordinate) for coordinate in coordinates]
        for arg in args:
            if arg.type != "i32":
                raise self.refuse(
                    f"indexes {tensor.name} with {kind_text(arg)}; indices are integers"
                )
            if self._is_negative(arg):
                raise self.refuse(
                    f"indexes {tensor.name} with a negative number, which does not count from the "
                    "end here"
                )
        numbers = tuple(arg.number for arg in args)
        return self.add(Node("load", load_type(tensor.dtype), numbers, number))

    def _is_negative(self, arg: Traced) -> bool:
        value = self.nodes[arg.number].value
        is_constant = self.nodes[arg.number].op == "constant"
        return is_constant and isinstance(value, int) and value < 0

    def lift(self, value: Any) -> Traced:
        """A stand-in for a stand-in or a number."""
        if isinstance(value, Traced):
            return value
        if isinstance(value, bool):
            return self.add(Node("constant", "i1", value=value))
        if isinstance(value, int):
            if value not in INT32:
                raise self.refuse(f"uses {value}; integers have 32 bits (write {value}.0?)")
            return self.add(Node("constant", "i32", value=value))
        if isinstance(value, float):
            return self.add(Node("constant", "f32", value=value))
        if isinstance(value, Stand):
            value.refuse()
        item = getattr(value, "item", None)
        if callable(item) and getattr(value, "shape", None) == ():
            return self.lift(item())
        raise self.refuse(f"cannot use {type(value).__name__} {value!r:.40} as a number")

    def refuse(self, what: str) -> SpecError:
        """The error, with the user's line."""
        return SpecError(place(f"{self.function} {what}", frame_of_caller(self.codes)))

    def apply(self, op: str, *operands: Any) -> Traced:
        """An operation on stand-ins and numbers, with the module's rules for mixed types."""
        expected = 3 if op == "where" else 1 if op in UNARY else 2
        if op != "where" and op not in UNARY and op not in BINARY:
            raise self.refuse(f"uses {op}, which cannot be traced")
        if len(operands) != expected:
            raise self.refuse(f"calls {op} with {len(operands)} operands; it has {expected}")
        args = [self.lift(operand) for operand in operands]
        if op == "where":
            condition, *choices = args
            if condition.type != "i1":
                raise self.refuse(f"gives where() {kind_text(condition)} as its condition")
            a, b = self._common(choices)
            return self.add(Node("where", a.type, (condition.number, a.number, b.number)))
        if op in FLOAT_ONLY:
            args = [self.cast(arg, "f32") for arg in args]
        elif op in LOGICAL and any(arg.type == "f32" for arg in args):
            raise self.refuse(f"applies {op} to a float")
        elif op in ORDERED or (op not in LOGICAL and op not in COMPARISONS):
            args = [self.cast(arg, "i32") if arg.type == "i1" else arg for arg in args]
        args = self._common(args)
        if op in INTEGER_ONLY:
            self._check_integer(op, args)
        if op == "not" and args[0].type != "i1":
            return self.apply("xor", args[0], -1)
        result = "i1" if op in COMPARISONS else args[0].type
        return self.add(Node(op, result, tuple(arg.number for arg in args)))

    def _check_integer(self, op: str, args: Sequence[Traced]) -> None:
        if args[0].type != "i32":
            raise self.refuse(f"applies {op} to floats; it is for integers")
        right = self.nodes[args[1].number]
        if right.op != "constant":
            return
        if op in ("floordiv", "mod") and right.value == 0:
            raise self.refuse("divides an integer by 0")
        if op in ("shl", "shr") and right.value not in range(32):
            raise self.refuse(f"shifts by {right.value}; integers have 32 bits")

    def _common(self, args: Sequence[Traced]) -> list[Traced]:
        """Operands in one type: f32 before i32 before i1."""
        kinds = [arg.type for arg in args]
        wanted = next(kind for kind in ("f32", "i32", "i1") if kind in kinds)
        return [self.cast(arg, wanted) for arg in args]

    def cast(self, arg: Traced, wanted: str) -> Traced:
        """The same value in another type."""
        if arg.type == wanted:
            return arg
        if wanted == "i1":
            return self.apply("ne", arg, 0)
        node = self.nodes[arg.number]
        if node.op == "constant" and node.value is not None and arg.type != "f32":
            return self.lift(float(node.value) if wanted == "f32" else int(node.value))
        return self.add(Node("cast", wanted, (arg.number,)))

    def call(self, name: str, args: Sequence[Any], options: dict[str, Any]) -> Traced:
        """A function of numpy or torch, or a method of tensors, by its name."""
        if name in _COMPOSED:
            try:
                return _COMPOSED[name](self, *args, **options)
            except TypeError as error:
                raise self.refuse(f"calls {name} in a way that cannot be traced") from error
        if name not in _BY_NAME:
            raise self.refuse(f"calls {name}, which cannot be traced")
        if options:
            raise self.refuse(f"calls {name} with {', '.join(options)}=, which cannot be traced")
        return self.apply(_BY_NAME[name], *args)


def kind_text(value: Traced) -> str:
    """A value's type for people."""
    return {"f32": "a float", "i32": "an integer", "i1": "a truth value"}[value.type]


def _clip(
    graph: Graph, x: Any, low: Any = None, high: Any = None, **options: Any
) -> Traced:  # numpy says a_min and a_max or min and max, torch min and max
    low = options.pop("min", options.pop("a_min", low))
    high = options.pop("max", options.pop("a_max", high))
    if options:
        raise TypeError(f"clip has no {', '.join(options)}")
    x = graph.lift(x)
    if low is not None:
        x = graph.apply("max", x, low)
    return x if high is None else graph.apply("min", x, high)


def _power(graph: Graph, base: Any, exponent: Any) -> Traced:
    if isinstance(base, int | float) and base == 2:
        return graph.apply("exp2", exponent)
    if not isinstance(exponent, int | float) or exponent not in range(1, MAX_POWER + 1):
        raise graph.refuse(
            f"raises to the power {exponent!r:.20}; exponents are integers from 1 to {MAX_POWER}, "
            "other powers are exp2(y * log2(x))"
        )
    result = base = graph.lift(base)
    for _ in range(int(exponent) - 1):
        result = graph.apply("mul", result, base)
    return result


def _sigmoid(graph: Graph, x: Any) -> Traced:
    return graph.apply(
        "div", 1.0, graph.apply("add", graph.apply("exp", graph.apply("neg", x)), 1.0)
    )


def _square(graph: Graph, x: Any) -> Traced:
    return graph.apply("mul", x, x)


def _relu(graph: Graph, x: Any) -> Traced:
    return graph.apply("max", x, 0.0)


def _reciprocal(graph: Graph, x: Any) -> Traced:
    return graph.apply("div", 1.0, x)


def _rsqrt(graph: Graph, x: Any) -> Traced:
    return graph.apply("div", 1.0, graph.apply("sqrt", x))


def _filled(
    number: int,
    graph: Graph,
    like: Any,
    size: Any = (),
    *,
    dtype: object = None,
    device: Any = None,
) -> Traced:  # and_masks and or_masks of PyTorch begin with b.new_ones((), dtype=torch.bool)
    if size not in ((), []) or device is not None:
        raise TypeError("a traced value has no dimensions and no device")
    like = graph.lift(like)
    made = graph.cast(graph.lift(number), like.type)
    return made if dtype is None else made.to(dtype)


_COMPOSED: dict[str, Callable[..., Traced]] = {
    "zeros_like": functools.partial(_filled, 0), "ones_like": functools.partial(_filled, 1),
    "new_zeros": functools.partial(_filled, 0), "new_ones": functools.partial(_filled, 1),
    "sigmoid": _sigmoid, "clip": _clip, "clamp": _clip, "power": _power, "pow": _power,
    "square": _square, "relu": _relu, "reciprocal": _reciprocal, "rsqrt": _rsqrt,
}  # fmt: skip


class Traced:
    """A stand-in for a number that exists only on the device."""

    __hash__ = None  # pyright: ignore[reportAssignmentType]
    __array_priority__ = 1000

    def __init__(self, graph: Graph, number: int):
        self.graph = graph
        self.number = number

    @property
    def type(self) -> str:
        """f32, i32 or i1."""
        return self.graph.nodes[self.number].type

    @property
    def device(self) -> None:
        """Of a tensor; here for functions that make a number where another one is."""
        return None

    def to(self, dtype: object) -> Traced:
        """The value as another type: float, int or bool, or a dtype of torch or numpy."""
        text = str(getattr(dtype, "__name__", dtype))
        kinds = {"float": "f32", "int": "i32", "bool": "i1"}
        found = [kind for name, kind in kinds.items() if name in text]
        if not found:
            raise self.graph.refuse(f"converts to {dtype!r:.40}; allowed are float, int and bool")
        return self.graph.cast(self, found[0])

    astype = to

    def float(self) -> Traced:
        """The value as f32."""
        return self.graph.cast(self, "f32")

    def int(self) -> Traced:
        """The value as i32, rounded towards 0."""
        return self.graph.cast(self, "i32")

    def bool(self) -> Traced:
        """Whether the value is not 0."""
        return self.graph.cast(self, "i1")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _BY_NAME and name not in _COMPOSED:
            raise self.graph.refuse(f"uses .{name} of a traced value, which cannot be traced")

        def method(*args: Any, **options: Any) -> Traced:
            return self.graph.call(name, (self, *args), options)

        return method

    def __pos__(self) -> Traced:
        return self

    def __pow__(self, exponent: Any) -> Traced:
        return self.graph.call("power", (self, exponent), {})

    def __rpow__(self, base: Any) -> Traced:
        return self.graph.call("power", (base, self), {})

    def __invert__(self) -> Traced:
        return self.graph.apply("not", self)

    def __bool__(self) -> builtins.bool:
        raise self.graph.refuse(
            "decides in Python over a traced value (if, and, or, not, in, min(), max()): use "
            "where(), &, |, ~, minimum(), maximum()"
        )

    def __float__(self) -> builtins.float:
        raise self.graph.refuse(
            "turns a traced value into a Python number (float(), int(), math.*): use exp(), "
            "tanh(), ... of attn_mlir.trace, numpy or torch"
        )

    __int__ = __float__  # pyright: ignore[reportAssignmentType]

    def __index__(self) -> builtins.int:
        raise self.graph.refuse(
            "needs a traced value as a Python integer (range(), an index of a list or of an array "
            "that the function does not capture by name): index captured arrays"
        )

    def __iter__(self) -> Any:
        raise self.graph.refuse("iterates over a traced value, which is one number")

    def __getitem__(self, index: Any) -> Any:
        raise self.graph.refuse("indexes a traced value, which is one number")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__":
            raise self.graph.refuse(f"uses {ufunc.__name__}.{method}, which cannot be traced")
        return self.graph.call(ufunc.__name__, inputs, options)

    def __array_function__(
        self, function: Any, kinds: Any, args: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        return self.graph.call(function.__name__, args, options)

    @classmethod
    def __torch_function__(
        cls, function: Any, kinds: Any, args: Sequence[Any] = (), options: Any = None
    ) -> Any:
        name = getattr(function, "__name__", str(function))
        stand_in = next(arg for arg in args if isinstance(arg, Traced))
        return stand_in.graph.call(name.strip("_"), args, options or {})


def _operator(op: str, reflected: bool) -> Callable[..., Traced]:
    def apply(self: Traced, *others: Any) -> Traced:
        operands = (*others, self) if reflected else (self, *others)
        return self.graph.apply(op, *operands)

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
