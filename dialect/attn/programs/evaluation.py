"""Evaluates a score modifier's program on numpy arrays: the definition of what it computes.

The compiled form is tested against this.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from attn_mlir.dialect.attn.programs.program import Node, Program


def _erf(x: Any) -> Any:
    """The error function, element by element: numpy has none."""
    found = np.frompyfunc(math.erf, 1, 1)(x)
    return np.asarray(found, np.asarray(x).dtype)


def _rounded(dtype: Any) -> Callable[[Any], Any]:
    """A function that rounds to a narrower type and converts back."""
    return lambda x: np.asarray(x).astype(dtype).astype(np.asarray(x).dtype)


_where: Callable[..., Any] = np.where
_FUNCTIONS: dict[str, Callable[..., Any]] = {
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
    "where": _where,
}
"""The functions of `program.UNARY`, `program.BINARY` and `where`."""


class Modified(NamedTuple):
    """The result of a program on scores.

    Attributes:
      score: the modified scores.
      kept: which of them are not hidden.
      sink: logit of the sink, a key without a value that each row sees as well; or None.
    """

    score: Any
    kept: Any
    sink: Any


def evaluate(
    program: Program,
    arguments: Mapping[str, Any],
    tensors: Mapping[str, Any],
    dtype: Any = np.float64,
) -> Modified:
    """Computes a program on arrays that broadcast against each other.

    Args:
      program: what to compute.
      arguments: an array per name of `program.ARGUMENTS`.
      tensors: an array per captured tensor.
      dtype: the type to compute f32 in: float64 for the truth, float32 for the yardstick.
    """
    kinds = {"f32": dtype, "i64": np.int64, "i32": np.int32, "i1": np.bool_}
    values: list[Any] = []
    with np.errstate(all="ignore"):  # infinities and NaNs as on the device
        for node in program.nodes:
            args = [values[number] for number in node.args]
            values.append(value_of(program, node, args, arguments, tensors, kinds))
    kept: Any = np.bool_(True)
    for number in program.keeps:
        kept = kept & values[number]
    sink = None if program.sink is None else values[program.sink]
    return Modified(values[program.score], kept, sink)


def value_of(
    program: Program,
    node: Node,
    args: Sequence[Any],
    arguments: Mapping[str, Any],
    tensors: Mapping[str, Any],
    kinds: Mapping[str, Any],
) -> Any:
    """Computes one node of a program.

    Args:
      args: values of its operand nodes.
      arguments, tensors: see `evaluate`.
      kinds: the numpy dtype of each of `program.TYPES`.
    """
    match node.op:
        case "argument":
            return np.asarray(arguments[str(node.value)], kinds[node.type])
        case "constant":
            return np.asarray(node.value, kinds[node.type])
        case "cast":
            return np.asarray(args[0]).astype(kinds[node.type])
        case "load":
            tensor: Any = tensors[program.tensors[int(node.value or 0)].name]
            inside: list[Any] = [
                np.clip(_where(c < 0, np.add(c, n, dtype=np.int64), c), 0, n - 1)
                for c, n in zip(args, tensor.shape, strict=True)
            ]
            return np.asarray(tensor[tuple(inside)]).astype(kinds[node.type])
        case op:
            return _FUNCTIONS[op](*args)
