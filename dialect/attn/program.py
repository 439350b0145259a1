"""A score modifier as data: what tracing makes, what the compiler emits, what a cache key holds.

A program is a list of nodes in the order of evaluation, without MLIR. `evaluate` computes it on
numpy arrays, which is the definition that the compiled form is tested against.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from attn_mlir.errors import SpecError

ARGUMENTS = ("score", "batch", "head", "q", "k")  # of a modifier: f32, then i32 coordinates
TYPES = ("f32", "i64", "i32", "i1")  # operands of two types meet in the first of these
TENSOR_DTYPES = ("f32", "bf16", "f16", "f64", "i8", "u8", "i16", "u16", "i32", "i64", "bool")


def _erf(x: Any) -> Any:
    """The error function, element by element: numpy has none."""
    found = np.frompyfunc(math.erf, 1, 1)(x)
    return np.asarray(found, np.asarray(x).dtype)


def _rounded(dtype: Any) -> Callable[[Any], Any]:
    """Rounds to a narrower type and goes on in the wider one."""
    return lambda x: np.asarray(x).astype(dtype).astype(np.asarray(x).dtype)


UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "not": np.logical_not,
    "sin": np.sin,
    "cos": np.cos,
    "erf": _erf,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "round": np.rint,
    "trunc": np.trunc,
    "f16": _rounded(np.float16),
    "bf16": _rounded(ml_dtypes.bfloat16),
}
_where: Callable[..., Any] = np.where
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "pow": np.power,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
ORDERED = ("lt", "le", "gt", "ge")
FLOAT_ONLY = (
    *("exp", "exp2", "log", "log2", "tanh", "sqrt", "floor", "ceil", "div"),
    *("sin", "cos", "erf", "log1p", "expm1", "round", "trunc", "f16", "bf16", "pow"),
)
INTEGER_ONLY = ("shl", "shr")
LOGICAL = ("and", "or", "xor", "not")


@dataclass(frozen=True)
class Node:
    """One value.

    Attributes:
      op: an entry of `UNARY` or `BINARY`, or `argument`, `constant`, `load`, `where`, `cast`.
      type: one of `TYPES`.
      args: numbers of earlier nodes; for `load` the coordinates: one below 0 counts from the end,
        and what is still outside the tensor stands for the nearest element inside.
      value: the argument's name, the constant, or the number of the captured tensor.
    """

    op: str
    type: str
    args: tuple[int, ...] = ()
    value: str | float | int | bool | None = None


@dataclass(frozen=True)
class CapturedTensor:
    """A tensor from outside: its name in calls, dtype and rank."""

    name: str
    dtype: str
    rank: int


class Modified(NamedTuple):
    """What a program makes of scores.

    Attributes:
      score: the modified scores.
      kept: which of them count.
      sink: logit of the key without a value that each row sees besides, or None.
    """

    score: Any
    kept: Any
    sink: Any


@dataclass(frozen=True)
class Program:
    """A score modifier.

    Attributes:
      nodes: in order of evaluation.
      score: the node that is the modified score.
      keeps: nodes that must all hold for the score to count.
      tensors: what it reads from outside.
      sink: the node, if any, that is the logit of a further key, without a value, that a row
        sees; it depends on batch, head and q alone and does not count in the LSE.
    """

    nodes: tuple[Node, ...]
    score: int
    keeps: tuple[int, ...] = ()
    tensors: tuple[CapturedTensor, ...] = ()
    sink: int | None = None

    def canonical(self) -> str:
        """JSON text, the same for the same program; `from_json` reads it."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> "Program":
        """The program that `canonical` wrote.

        Raises:
          SpecError: the text is something else.
        """
        try:
            fields = json.loads(text)
            nodes = [
                Node(n["op"], n["type"], tuple(n["args"]), n["value"]) for n in fields["nodes"]
            ]
            tensors = [CapturedTensor(**tensor) for tensor in fields["tensors"]]
            keeps, sink = tuple(fields["keeps"]), fields["sink"]
            program = Program(tuple(nodes), fields["score"], keeps, tuple(tensors), sink)
        except (ValueError, KeyError, TypeError) as error:
            raise SpecError(f"no program of a score modifier: {text:.60}") from error
        return program

    def evaluate(
        self,
        arguments: Mapping[str, Any],
        tensors: Mapping[str, Any],
        dtype: Any = np.float64,
    ) -> Modified:
        """Computes the program on arrays that broadcast against each other.

        Args:
          arguments: an array per name of `ARGUMENTS`.
          tensors: an array per captured tensor.
          dtype: what stands for f32: float64 for the truth, float32 for the yardstick.
        """
        kinds = {"f32": dtype, "i64": np.int64, "i32": np.int32, "i1": np.bool_}
        values: list[Any] = []
        with np.errstate(all="ignore"):  # infinities and NaNs as on the device
            for node in self.nodes:
                args = [values[number] for number in node.args]
                values.append(self.value_of(node, args, arguments, tensors, kinds))
        kept: Any = np.bool_(True)
        for number in self.keeps:
            kept = kept & values[number]
        return Modified(values[self.score], kept, None if self.sink is None else values[self.sink])

    def value_of(
        self,
        node: Node,
        args: Sequence[Any],
        arguments: Mapping[str, Any],
        tensors: Mapping[str, Any],
        kinds: Mapping[str, Any],
    ) -> Any:
        """Computes one node.

        Args:
          args: values of the nodes that it needs.
          arguments, tensors: see `evaluate`.
          kinds: the numpy dtype of each of `TYPES`.
        """
        match node.op:
            case "argument":
                return np.asarray(arguments[str(node.value)], kinds[node.type])
            case "constant":
                return np.asarray(node.value, kinds[node.type])
            case "cast":
                return np.asarray(args[0]).astype(kinds[node.type])
            case "where":
                return _where(*args)
            case "load":
                tensor: Any = tensors[self.tensors[int(node.value or 0)].name]
                inside: list[Any] = [
                    np.clip(_where(c < 0, np.add(c, n, dtype=np.int64), c), 0, n - 1)
                    for c, n in zip(args, tensor.shape, strict=True)
                ]
                return np.asarray(tensor[tuple(inside)]).astype(kinds[node.type])
            case op if op in UNARY:
                return UNARY[op](args[0])
            case op:
                return BINARY[op](args[0], args[1])


def load_type(dtype: str) -> str:
    """The type of a value loaded from a tensor of this dtype."""
    if dtype == "bool":
        return "i1"
    if dtype in TYPES:
        return dtype
    return "i32" if dtype[0] in "iu" else "f32"


def never_negative(nodes: Sequence[Node]) -> list[bool]:
    """Which of the nodes are known to be 0 or more, so that none counts from the end of a tensor.

    Sums and products that leave their type's range do not count: they are outside a tensor anyway.
    """
    found: list[bool] = []
    for node in nodes:
        args = [found[number] for number in node.args]
        match node.op:
            case "argument":
                known = node.value != "score"
            case "constant":
                known = node.value is not None and not float(node.value) < 0
            case "add" | "mul" | "min" | "or" | "xor" | "floordiv":
                known = all(args)
            case "where":
                known = all(args[1:])
            case "max" | "and":
                known = any(args)
            case "mod":
                known = args[1]
            case "cast" | "shr":
                known = args[0]
            case op:
                known = op == "abs"
        found.append(known or node.type == "i1")
    return found
