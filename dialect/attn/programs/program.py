"""A score modifier as data: made by tracing, emitted by the compiler, part of the cache key.

A program is a list of nodes in the order of evaluation, without MLIR and numpy.
`evaluation.evaluate`, which computes it on arrays, defines its meaning.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from attn_mlir.errors import SpecError

ARGUMENTS = (
    "score",
    "batch",
    "head",
    "q",
    "k",
)  # arguments of a modifier: f32, then i32 coordinates
TYPES = (
    "f32",
    "i64",
    "i32",
    "i1",
)  # operands of two types are converted to the one that comes first here
TENSOR_DTYPES = ("f32", "bf16", "f16", "f64", "i8", "u8", "i16", "u16", "i32", "i64", "bool")


UNARY = (
    *("neg", "abs", "exp", "exp2", "log", "log2", "tanh", "sqrt", "floor", "ceil", "not"),
    *("sin", "cos", "erf", "log1p", "expm1", "round", "trunc", "f16", "bf16"),
)
BINARY = (
    *("add", "sub", "mul", "div", "floordiv", "mod", "pow", "min", "max"),
    *("and", "or", "xor", "shl", "shr", "eq", "ne", "lt", "le", "gt", "ge"),
)
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
    """One value of a program.

    Attributes:
      op: an entry of `UNARY` or `BINARY`, or `argument`, `constant`, `load`, `where`, `cast`.
      type: one of `TYPES`.
      args: numbers of earlier nodes. For `load` these are coordinates: one below 0 counts from the
        end, and one that is still outside is clamped to the tensor.
      value: the argument's name, the constant, or the number of the captured tensor.
    """

    op: str
    type: str
    args: tuple[int, ...] = ()
    value: str | float | int | bool | None = None


@dataclass(frozen=True)
class CapturedTensor:
    """A tensor that a modifier reads: its name in calls, dtype and rank."""

    name: str
    dtype: str
    rank: int


@dataclass(frozen=True)
class Program:
    """A score modifier.

    Attributes:
      nodes: in order of evaluation.
      score: the node that is the modified score.
      keeps: nodes that must all hold, or else the score is hidden.
      tensors: the tensors that it reads.
      sink: the node, if any, with the logit of the sink: a key without a value that each row sees
        in addition. It depends on batch, head and q alone and is not part of the LSE.
    """

    nodes: tuple[Node, ...]
    score: int
    keeps: tuple[int, ...] = ()
    tensors: tuple[CapturedTensor, ...] = ()
    sink: int | None = None

    def canonical(self) -> str:
        """JSON text, the same for equal programs; `from_json` reads it."""
        lists = {"nodes": [*map(vars, self.nodes)], "tensors": [*map(vars, self.tensors)]}
        return json.dumps({**vars(self), **lists}, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> "Program":
        """The program that `canonical` wrote.

        Raises:
          SpecError: the text is no such program.
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


def load_type(dtype: str) -> str:
    """The type of a value loaded from a tensor of this dtype."""
    if dtype == "bool":
        return "i1"
    if dtype in TYPES:
        return dtype
    return "i32" if dtype[0] in "iu" else "f32"


def never_negative(nodes: Sequence[Node]) -> list[bool]:
    """The nodes that are known to be 0 or more, so that as coordinates they do not count from the
    end.

    Sums and products that overflow are not considered: they are outside of any tensor.
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
