"""The stand-in for a number that exists only on the device: operators, methods and protocols."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attn_mlir.tracing import integers
from attn_mlir.tracing.captured_array import ArrayProxy, flattened
from attn_mlir.tracing.functions import COMPOSED, OPERATIONS

Graph = Any  # of `graph`, which knows this module

_DTYPES = {  # name of a dtype of Python, numpy or torch -> type in programs, or format to round to
    **dict.fromkeys(("float", "float32", "float64", "double", "single"), "f32"),
    **dict.fromkeys(("int", "int64", "long"), "i64"),
    "int32": "i32",
    **{name: kind for kind, name in integers.NUMPY_NAMES.items()}, "short": "i16",
    **dict.fromkeys(("bool", "bool_"), "i1"),
    "float16": "f16", "half": "f16", "bfloat16": "bf16",
}  # fmt: skip
_NUMPY_NAMES = {"f32": "float32", "i64": "int64", "i32": "int32", "i1": "bool"}
_NUMPY_NAMES.update(integers.NUMPY_NAMES)


class Traced:
    """A stand-in for a number that exists only on the device.

    Attributes:
      graph: the graph that it belongs to.
      node: which of the graph's nodes computes the number.
      kind: the type that the function computes in: `type`, or 8 or 16 bits of an i32 (`integers`).
    """

    __array_priority__ = 1000

    def __init__(self, graph: Graph, node: int, narrow: str | None = None):
        self.graph = graph
        self.node = node
        self.kind: str = narrow or graph.nodes[node].type

    @property
    def type(self) -> str:
        """f32, i64, i32 or i1, as the kernel holds it."""
        return self.graph.nodes[self.node].type

    @property
    def device(self) -> None:
        """The device of a tensor, for functions that make a number on the device of another."""
        return None

    @property
    def dtype(self) -> Any:
        """That of torch for functions which use torch, else that of numpy."""
        name = _NUMPY_NAMES[self.kind]
        if self.graph.uses_torch:
            return getattr(sys.modules["torch"], name)
        return np.dtype(name)

    @property
    def shape(self) -> tuple[()]:
        """A traced value is one number."""
        return ()

    ndim = 0

    def size(self) -> tuple[()]:
        """As `shape`, in torch's words."""
        return ()

    def dim(self) -> builtins.int:
        """As `ndim`, in torch's words."""
        return 0

    def numel(self) -> builtins.int:
        """One."""
        return 1

    def to(self, *args: Any, dtype: object = None, **options: Any) -> Traced:
        """The value as another type: float, int or bool, or a dtype of torch or numpy.

        f16 and bf16 round the value, which goes on as f32. Devices and layouts mean nothing here.
        """
        requested = [*args, *([] if dtype is None else [dtype])]
        result = self
        for item in requested:
            if isinstance(item, Traced):
                result = result.graph.cast(result, item.kind)
            elif item is None or _says_where(item):
                continue
            else:
                result = result._as(item)
        return result

    astype = type_as = to

    def _as(self, dtype: object) -> Traced:
        """The value in the type that a dtype stands for; of 16 bits rounded to it, as f32."""
        text = str(getattr(dtype, "__name__", dtype)).rpartition(".")[2]
        if text not in _DTYPES:
            raise self.graph.refuse(
                f"converts to {dtype!r:.40}; allowed are float of 16 to 64 bits, bfloat16, bool, "
                "int of 8 to 64 bits, and uint8 and uint16"
            )
        kind = _DTYPES[text]
        if kind in ("f16", "bf16"):
            return self.graph.apply(kind, self)
        return self.graph.cast(self, kind)

    def float(self) -> Traced:
        """The value as f32."""
        return self.graph.cast(self, "f32")

    def int(self) -> Traced:
        """The value as i32, rounded towards 0."""
        return self.graph.cast(self, "i32")

    double = float

    def long(self) -> Traced:
        """The value as i64, rounded towards 0."""
        return self.graph.cast(self, "i64")

    def byte(self) -> Traced:
        """The value as torch's uint8."""
        return self._as("uint8")

    def char(self) -> Traced:
        """The value as torch's int8."""
        return self._as("int8")

    def short(self) -> Traced:
        """The value as int16."""
        return self._as("int16")

    def half(self) -> Traced:
        """The value rounded to f16."""
        return self._as("float16")

    def bfloat16(self) -> Traced:
        """The value rounded to bf16."""
        return self._as("bfloat16")

    def bool(self) -> Traced:
        """Whether the value is not 0."""
        return self.graph.cast(self, "i1")

    def detach(self) -> Traced:
        """The value: nothing here has gradients."""
        return self

    clone = contiguous = detach

    def where(self, condition: Any, other: Any) -> Traced:
        """The value where the condition holds, else another one."""
        return self.graph.apply("where", condition, self, other)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("weak_type", "sharding"):  # jax asks, and goes on
            raise AttributeError(name)
        if name.endswith("_") and (name[:-1] in OPERATIONS or name[:-1] in COMPOSED):
            raise self.graph.refuse(
                f"calls .{name}(), which changes a value in place: use the result of .{name[:-1]}()"
            )
        if name not in OPERATIONS and name not in COMPOSED:
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

    def __round__(self, digits: Any = None) -> Traced:
        rounded = self.graph.call("round", (self, digits or 0), {})
        return rounded if digits is not None else rounded.int()

    def __floor__(self) -> Traced:
        return self.graph.apply("floor", self).int()

    def __ceil__(self) -> Traced:
        return self.graph.apply("ceil", self).int()

    def __trunc__(self) -> Traced:
        return self.int()

    def __divmod__(self, other: Any) -> tuple[Traced, Traced]:
        return self.graph.apply("floordiv", self, other), self.graph.apply("mod", self, other)

    def __rdivmod__(self, other: Any) -> tuple[Traced, Traced]:
        return self.graph.apply("floordiv", other, self), self.graph.apply("mod", other, self)

    def __hash__(self) -> builtins.int:
        raise self.graph.refuse(
            "looks a traced value up in a dictionary or a set, which cannot be traced: put the "
            "values into an array and index that"
        )

    def __repr__(self) -> str:
        return f"<traced {self.type}>"

    def __setitem__(self, index: Any, value: Any) -> None:
        raise self.graph.refuse("writes into a traced value, which is one number: use where()")

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
        self, function: Any, types: Any, args: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        name = function.__name__
        if name in ("shape", "ndim"):
            return getattr(self, name)
        return self.graph.call(name, args, options)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), options: Any = None
    ) -> Any:
        stand_in = next(x for x in flattened((args, options)) if isinstance(x, Traced | ArrayProxy))
        return stand_in.graph.call_torch(function, args, options or {})


def _says_where(value: object) -> bool:
    """Whether an argument of `to` is a device or a layout, or whether to copy: nothing for a
    number.
    """
    name = type(value).__name__
    return name in ("device", "memory_format", "layout") or (
        isinstance(value, str) and value.partition(":")[0] in ("cpu", "cuda")
    ) or value is True or value is False  # fmt: skip


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
