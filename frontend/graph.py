"""The graph of what a Python function does with numbers of the device."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from attn_mlir.captured_array import Stand
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
from attn_mlir.functions import COMPOSED, IGNORED, OPERATIONS
from attn_mlir.traced import Traced

INT32 = range(-(2**31), 2**31)


class Graph:
    """The nodes so far; equal ones are one.

    Attributes:
      nodes: in order of evaluation.
      tensors: captured tensors in the order of their first use.
      codes: code of the functions being traced, to find the user's line by.
      captures: what these functions capture.
      uses_torch: whether they are written for PyTorch, as far as one can see.
    """

    captures: Any  # a `Captures`, which knows this module

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tensors: list[CapturedTensor] = []
        self.codes: set[types.CodeType] = set()
        self.uses_torch = False
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
        numbers = tuple(self.index(tensor.name, arg).number for arg in coordinates)
        return self.add(Node("load", load_type(tensor.dtype), numbers, number))

    def index(self, name: str, value: Any) -> Traced:
        """A stand-in for an index into an array of that name."""
        arg = self.lift(value)
        if arg.type != "i32":
            raise self.refuse(f"indexes {name} with {kind_text(arg)}; indices are integers")
        if self._is_negative(arg):
            raise self.refuse(
                f"indexes {name} with a negative number, which does not count from the end here"
            )
        return arg

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
            return value.lifted()
        item = getattr(value, "item", None)
        if callable(item) and getattr(value, "shape", None) == ():
            return self.lift(item())
        if getattr(value, "requires_grad", None) is not None:  # a tensor found by torch itself
            return self.captures.array("captured", value).lifted()
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
        if args[0].type == "i32" or op in INTEGER_ONLY:
            self._check_integer(op, args)
        if op == "not" and args[0].type != "i1":
            return self.apply("xor", args[0], -1)
        result = "i1" if op in COMPARISONS else args[0].type
        return self.add(Node(op, result, tuple(arg.number for arg in args)))

    def _check_integer(self, op: str, args: Sequence[Traced]) -> None:
        if args[0].type != "i32":
            raise self.refuse(f"applies {op} to floats; it is for integers")
        right = self.nodes[args[-1].number]
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

    def call(self, name: str, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """A function of numpy or torch, or a method of tensors, by its name."""
        given = {k: v for k, v in options.items() if k not in IGNORED or v is not IGNORED[k]}
        if name in COMPOSED:
            try:
                return COMPOSED[name](self, *args, **given)
            except TypeError as error:
                raise self.refuse(f"calls {name} in a way that cannot be traced") from error
        if name not in OPERATIONS:
            raise self.refuse(f"calls {name}, which cannot be traced")
        if given:
            raise self.refuse(f"calls {name} with {', '.join(given)}=, which cannot be traced")
        return self.apply(OPERATIONS[name], *args)

    def call_torch(self, function: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """What torch was asked to do with a stand-in among its arguments."""
        name = str(getattr(function, "__name__", function))
        if name == "__getitem__":  # of a tensor that no stand-in was put in the place of
            return self.captures.array("captured", args[0])[args[1]]
        if name == "embedding":
            return self.captures.stand_in("weight", args[1])[args[0]]
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            raise self.refuse(f"calls {name}, which changes a value in place: use its result")
        return self.call(name.strip("_"), args, options)


def kind_text(value: Traced) -> str:
    """A value's type for people."""
    return {"f32": "a float", "i32": "an integer", "i1": "a truth value"}[value.type]
