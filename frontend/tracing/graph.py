"""The graph of what a Python function does with numbers of the device."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

from attn_mlir.dialect.attn.programs.program import (
    BINARY,
    COMPARISONS,
    FLOAT_ONLY,
    INTEGER_ONLY,
    LOGICAL,
    ORDERED,
    TYPES,
    UNARY,
    CapturedTensor,
    Node,
    load_type,
    never_negative,
)
from attn_mlir.errors import SpecError
from attn_mlir.tracing import integers
from attn_mlir.tracing.captured_array import ArrayProxy
from attn_mlir.tracing.excerpt import located, spot_of_caller
from attn_mlir.tracing.functions import COMPOSED, IGNORED, OPERATIONS
from attn_mlir.tracing.traced import Traced

INT32, INT64 = range(-(2**31), 2**31), range(-(2**63), 2**63)
BITS = {"i32": 32, "i64": 64}
OF_TRUTH = {
    "add": "or",
    "max": "or",
    "mul": "and",
    "min": "and",
}  # of truth values, as in torch and numpy


class Graph:
    """The nodes so far; equal ones are one.

    Attributes:
      nodes: in order of evaluation.
      tensors: captured tensors in the order of their first use.
      codes: code of the functions being traced, to find the user's line by.
      captures: what these functions capture.
      uses_torch: whether they are written for PyTorch, as far as one can see.
      function: what messages call the function being traced.
    """

    captures: Any  # a `Captures`, which knows this module

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tensors: list[CapturedTensor] = []
        self.codes: set[types.CodeType] = set()
        self.uses_torch = False
        self.function = "the function"
        self._numbers: dict[str, int] = {}  # text of a node -> its place in `nodes`

    def add(self, node: Node) -> Traced:
        """A stand-in for a node."""
        key = repr(node)  # tells 0.0 from -0.0
        if key not in self._numbers:
            self._numbers[key] = len(self.nodes)
            self.nodes.append(node)
        return Traced(self, self._numbers[key])

    def load(self, which: int, coordinates: Sequence[Any]) -> Traced:
        """A stand-in for an element of a captured tensor.

        Args:
          which: of `tensors`.
          coordinates: see `Node` for those outside the tensor; axes that the caller does not know
            of, at the end, have one element.
        """
        tensor = self.tensors[which]
        trailing = [0] * (tensor.rank - len(coordinates))
        args = [self.index(tensor.name, coordinate) for coordinate in (*coordinates, *trailing)]
        element = self.add(Node("load", load_type(tensor.dtype), _nodes(args), which))
        return (
            self._as_small_int(tensor.dtype, element) if tensor.dtype in integers.BITS else element
        )

    def index(self, name: str, value: Any) -> Traced:
        """A stand-in for an index into an array of that name."""
        arg = self.lift(value)
        if arg.type not in BITS:
            raise self.refuse(f"indexes {name} with {type_text(arg)}; indices are integers")
        return self.cast(arg, arg.type)

    def from_start(self, index: Traced, extent: int) -> Traced:
        """An index that counts from the end if it is below 0, as one from the start."""
        if never_negative(self.nodes)[index.node]:
            return index
        return self.apply(
            "where", self.apply("lt", index, 0), self.apply("add", index, extent), index
        )

    def lift(self, value: Any) -> Traced:
        """The stand-in for a value: for a number a constant, for an array its one element.

        A stand-in remains what it is.
        """
        if isinstance(value, Traced):
            return value
        if isinstance(value, bool):
            return self.add(Node("constant", "i1", value=value))
        if isinstance(value, int):
            if value not in INT64:
                raise self.refuse(f"uses {value}; integers have 64 bits (write {value}.0?)")
            return self.add(Node("constant", "i32" if value in INT32 else "i64", value=value))
        if isinstance(value, float):
            return self.add(Node("constant", "f32", value=value))
        if isinstance(value, ArrayProxy):
            return value.lifted()
        item = getattr(value, "item", None)
        if callable(item) and getattr(value, "shape", None) == ():
            kind, number = integers.kind_of(getattr(value, "dtype", "")), self.lift(item())
            return number if kind is None else self._as_small_int(kind, number)
        if getattr(value, "requires_grad", None) is not None:  # a tensor found by torch itself
            return self.captures.array("captured", value).lifted()
        raise self.refuse(f"cannot use {type(value).__name__} {value!r:.40} as a number")

    def refuse(self, what: str) -> SpecError:
        """The error, with the user's line."""
        return SpecError(located(f"{self.function} {what}", spot_of_caller(self.codes)))

    def apply(self, op: str, *operands: Any) -> Traced:
        """An operation on stand-ins and numbers, with the module's rules for mixed types."""
        expected = 3 if op == "where" else 1 if op in UNARY else 2
        if op != "where" and op not in UNARY and op not in BINARY:
            raise self.refuse(f"uses {op}, which cannot be traced")
        if len(operands) != expected:
            raise self.refuse(f"calls {op} with {len(operands)} operands; it has {expected}")
        if op == "where":
            condition, *choices = operands
            return self._choice(self.lift(condition), *self._lifted(op, choices))
        kind, args = self._lifted(op, operands)
        if all(arg.type == "i1" for arg in args):
            op = OF_TRUTH.get(op, op)
        if op in FLOAT_ONLY:
            args = [self.cast(arg, "f32") for arg in args]
        elif op in LOGICAL and any(arg.type == "f32" for arg in args):
            raise self.refuse(f"applies {op} to a float")
        elif op in ORDERED or (op not in LOGICAL and op not in COMPARISONS):
            args = [self.cast(arg, "i32") if arg.type == "i1" else arg for arg in args]
        args = self._common(args)
        if args[0].type in BITS or op in INTEGER_ONLY:
            self._check_integer(op, args, kind)
        if op == "not" and args[0].type != "i1":
            return self._typed(kind, self.apply("xor", args[0], -1), may_overflow=kind is not None)
        result = "i1" if op in COMPARISONS else args[0].type
        result_node = self.add(Node(op, result, _nodes(args)))
        if kind is None or result == "i1":
            return result_node
        return self._typed(kind, result_node, may_overflow=integers.may_overflow(op, kind))

    def meet(self, *operands: Any) -> str | None:
        """The type of 8 or 16 bits that integers have in common, if they have."""
        return integers.promoted(
            "f32" if type(x) is float else self.lift(x).kind for x in operands if type(x) is not int
        )

    def apply_in_i32(self, op: str, function: Callable[..., Traced], *operands: Any) -> Traced:
        """A composed function of integers, computed in i32 and wrapped around where `op` would
        be.
        """
        numbers = [x if type(x) in (int, float) else self.lift(x) for x in operands]
        kind, args = self._lifted(op, numbers)
        in_i32 = [
            self.cast(x, x.type) if isinstance(x, Traced) else x
            for x in (args if kind else numbers)
        ]
        result = function(self, *in_i32)
        return result if kind is None else self.cast(result, kind)

    def _lifted(self, op: str, operands: Sequence[Any]) -> tuple[str | None, list[Traced]]:
        """Stand-ins for operands, and the type of 8 or 16 bits that the operation is in,
        if it is.
        """
        lifted = [x if type(x) is int else self.lift(x) for x in operands]
        kinds = [x.kind for x in lifted if isinstance(x, Traced)]
        kind = None if op in FLOAT_ONLY else integers.promoted(kinds)
        if kind is None:
            return None, [self.lift(x) for x in lifted]
        exact = op in integers.EXACT
        return kind, [
            x if isinstance(x, Traced) else self.number(kind, x, exact=exact) for x in lifted
        ]

    def _choice(self, condition: Traced, kind: str | None, choices: Sequence[Traced]) -> Traced:
        """One of two values."""
        if condition.type != "i1":
            raise self.refuse(f"gives where() {type_text(condition)} as its condition")
        a, b = self._common(choices)
        return self._typed(kind, self.add(Node("where", a.type, _nodes([condition, a, b]))))

    def number(self, kind: str, value: int, *, exact: bool) -> Traced:
        """A Python integer in a type, of 8 or 16 bits as torch converts it.

        Args:
          exact: the integer has to be one of the type. Where torch takes it none the less, in
            comparisons, torch compares with the wrapped number and numpy with the number itself.

        Raises:
          SpecError: it has to be, and is not.
        """
        if kind not in integers.BITS:
            return self.cast(self.lift(value), kind)
        values, name = integers.values_of(kind), integers.NUMPY_NAMES[kind]
        if exact and value not in values:
            raise self.refuse(
                f"uses {value} with a number of {name}, which goes from {values.start} to "
                f"{values.stop - 1}: convert that number first, with .to(int)"
            )
        return self._as_small_int(kind, self.lift(integers.wrapped(kind, value)))

    def _as_small_int(self, kind: str, value: Traced) -> Traced:
        """A stand-in for an i32 that holds a number of 8 or 16 bits."""
        return Traced(self, value.node, kind)

    def _typed(self, kind: str | None, value: Traced, *, may_overflow: bool = False) -> Traced:
        """A result in the type of its operation: an i32 that may leave it is wrapped around."""
        if kind is None:
            return value
        if may_overflow:
            values = integers.values_of(kind)
            value = self._on_bits("and", self._as_small_int(kind, value), len(values) - 1)
            if values.start < 0:  # the highest bit counts below 0
                value = self._on_bits("xor", value, -values.start)
                value = self._on_bits("sub", value, -values.start)
        return self._as_small_int(kind, value)

    def _on_bits(self, op: str, value: Traced, number: int) -> Traced:
        """An operation on an i32 and a constant, whatever the types of the user's numbers."""
        return self.add(Node(op, "i32", _nodes([value, self.lift(number)])))

    def _check_integer(self, op: str, args: Sequence[Traced], kind: str | None) -> None:
        if args[0].type not in BITS:
            raise self.refuse(f"applies {op} to floats; it is for integers")
        right = self.nodes[args[-1].node]
        if right.op != "constant":
            return
        if op in ("floordiv", "mod") and right.value == 0:
            raise self.refuse("divides an integer by 0")
        bits = integers.BITS[kind] if kind else BITS[args[0].type]
        if op in ("shl", "shr") and right.value not in range(bits):
            raise self.refuse(f"shifts by {right.value}; integers have {bits} bits")

    def _common(self, args: Sequence[Traced]) -> list[Traced]:
        """Operands in one type, the first one of `TYPES` that occurs."""
        types = [arg.type for arg in args]
        common = next(name for name in TYPES if name in types)
        return [self.cast(arg, common) for arg in args]

    def cast(self, arg: Traced, kind: str) -> Traced:
        """The same value in another type; one of 8 or 16 bits keeps the lowest bits of integers."""
        if arg.kind == kind:
            return arg
        if kind in integers.BITS:
            return self._to_small_int(arg, kind)
        if arg.type == kind:
            return Traced(self, arg.node)
        if kind == "i1":
            return self.apply("ne", arg, 0)
        node = self.nodes[arg.node]
        if node.op == "constant" and node.value is not None and arg.type != "f32":
            number = float(node.value) if kind == "f32" else int(node.value)
            if kind == "f32" or number in (INT32 if kind == "i32" else INT64):
                return self.add(Node("constant", kind, value=number))
        return self.add(Node("cast", kind, (arg.node,)))

    def _to_small_int(self, arg: Traced, kind: str) -> Traced:
        """A value in a type of 8 or 16 bits."""
        constant = self.nodes[arg.node]
        if constant.op == "constant" and isinstance(constant.value, int):
            return self.number(kind, int(constant.value), exact=False)
        fits = arg.type == "i1" or integers.promoted((arg.kind, kind)) == kind
        return self._typed(kind, self.cast(arg, "i32"), may_overflow=not fits)

    def call(self, name: str, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """A function of numpy or torch, or a method of tensors, by its name."""
        effective = {k: v for k, v in options.items() if k not in IGNORED or v is not IGNORED[k]}
        if name in COMPOSED:
            try:
                return COMPOSED[name](self, *args, **effective)
            except TypeError as error:
                raise self.refuse(f"calls {name} in a way that cannot be traced") from error
        if name not in OPERATIONS:
            raise self.refuse(f"calls {name}, which cannot be traced")
        if effective:
            raise self.refuse(f"calls {name} with {', '.join(effective)}=, which cannot be traced")
        return self.apply(OPERATIONS[name], *args)

    def call_torch(self, function: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """A call of torch with a stand-in among its arguments."""
        name = str(getattr(function, "__name__", function))
        if name == "__getitem__":  # of a tensor that no stand-in was put in the place of
            return self.captures.array("captured", args[0])[args[1]]
        if name == "embedding":
            return self.captures.stand_in("weight", args[1])[args[0]]
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            raise self.refuse(f"calls {name}, which changes a value in place: use its result")
        return self.call(name.strip("_"), args, options)


def _nodes(values: Sequence[Traced]) -> tuple[int, ...]:
    """Which nodes compute values."""
    return tuple(value.node for value in values)


def type_text(value: Traced) -> str:
    """A value's type for people."""
    return {"f32": "a float", "i1": "a truth value"}.get(value.type, "an integer")
