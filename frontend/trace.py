"""Traces Python functions of one score into programs: `score_mod` and `mask_mod`.

The function runs once, with stand-ins for the score and its coordinates. Operations on these are
recorded: operators, functions of this module, numpy, torch and `torch.nn.functional` (`functions`
lists them), methods of tensors, and indexing of arrays that it captures (`capture`). Python numbers
become constants. Control flow that depends on a value, such as `if`, cannot be traced. Writes to
objects outside the function are refused, as they would happen once and not for each score.

Numbers are f32, i64, i32 or i1. Operands of different types are converted to the one that comes
first in this list; truth values count as 0 and 1 in arithmetic; `/` gives f32; `//` and `%` round
down, and `**` gives f32 except for whole constant exponents up to 16. f64 is f32 here; `float16`
and `bfloat16` round a value, which stays f32. Coordinates are i32; larger constants, and elements
of i64 arrays, are i64. Integers wrap around, those of 8 and 16 bits in their type as in torch
(`tracing/integers.py`), and dividing one by 0 gives an arbitrary number.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect.attn.programs.program import ARGUMENTS, Node, Program
from attn_mlir.errors import AttnError, SpecError
from attn_mlir.tracing.capture import Captures
from attn_mlir.tracing.excerpt import located, spot_of_error
from attn_mlir.tracing.graph import Graph, type_text
from attn_mlir.tracing.traced import Traced

TOO_DEEP = "{} calls functions in functions too deep to be traced: combine them in one list"
ScoreMod = Callable[[Any, Any, Any, Any, Any], Any]
MaskMod = Callable[[Any, Any, Any, Any], Any]


@dataclass(frozen=True, eq=False)
class Recorded:
    """A traced score modifier and predicate, to be passed as `score_mod` in place of both.

    Attributes:
      program: the result of `trace`, without sinks.
      arrays: the arrays that it reads, by name.
    """

    program: Program
    arrays: Mapping[str, Any]


def trace(
    score_mod: ScoreMod | Recorded | None = None,
    mask_mod: MaskMod | None = None,
    sinks: object | None = None,
) -> tuple[Program | None, dict[str, Any]]:
    """Traces a score modifier and a mask predicate into one program.

    Args:
      score_mod: `score_mod(score, b, h, q, k)` returns the modified score.
      mask_mod: `mask_mod(b, h, q, k)` returns whether the score is visible.
      sinks: an array [heads] of logits of a key without a value.

    Returns:
      The program (None if there is nothing to do) and the captured arrays by name.

    Raises:
      SpecError: a function that cannot be traced; the message names its file and line.
    """
    if score_mod is None and mask_mod is None and sinks is None:
        return None, {}
    program, captures = _traced(score_mod, mask_mod, sinks)
    return program, captures.arrays


def trace_sources(
    score_mod: ScoreMod | Recorded | None, mask_mod: MaskMod | None
) -> tuple[Program | None, dict[str, Any]]:
    """As `trace`; arrays are as their caller has them, such as one that requires a gradient."""
    if isinstance(score_mod, Recorded) and mask_mod is None:
        return score_mod.program, dict(score_mod.arrays)
    if score_mod is None and mask_mod is None:
        return None, {}
    program, captures = _traced(score_mod, mask_mod, None)
    return program, captures.sources


def _traced(
    score_mod: ScoreMod | Recorded | None, mask_mod: MaskMod | None, sinks: object | None
) -> tuple[Program, Captures]:
    """The program, and what it reads; errors as of `trace`."""
    graph = Graph()
    captures = Captures(graph)
    coordinates = [graph.add(_argument(name)) for name in ARGUMENTS]
    score = coordinates[0]
    keeps: tuple[int, ...] = ()
    if isinstance(score_mod, Recorded):
        nodes = [graph.add(node) for node in score_mod.program.nodes]
        score, keeps = nodes[score_mod.program.score], score_mod.program.keeps
        graph.tensors.extend(score_mod.program.tensors)
        captures.arrays.update(score_mod.arrays)
    elif score_mod is not None:
        score = graph.cast(_run("score_mod", score_mod, graph, captures, coordinates), "f32")
    if mask_mod is not None:
        condition = _run("mask_mod", mask_mod, graph, captures, coordinates[1:])
        if condition.type != "i1":
            raise graph.refuse(f"returns {type_text(condition)}, a mask_mod returns a truth value")
        keeps = (condition.node,)
    sink: int | None = None
    if sinks is not None:
        array = captures.array("sinks", sinks)
        if array.ndim != 1:
            raise SpecError(f"sinks must be [heads], got {array.ndim} dimensions")
        sink = graph.cast(graph.load(array.tensor, [coordinates[2]]), "f32").node
    return Program(tuple(graph.nodes), score.node, keeps, tuple(graph.tensors), sink), captures


def keeps_of(program: Program) -> MaskMod:
    """The predicate of a program as a function that replays its nodes when it is traced.

    It reads the same tensors as the program's score modifier, so that both can be traced together.
    """

    def keeps(*coordinates: Traced) -> Traced:
        graph = coordinates[0].graph
        given: dict[str, Traced] = dict(zip(ARGUMENTS[1:], coordinates, strict=True))
        made: list[Traced | None] = []
        for node in program.nodes:
            args = [made[number] for number in node.args]
            if node.op == "argument":
                made.append(given.get(str(node.value)))
            elif any(x is None for x in args):  # depends on the score
                made.append(None)
            else:
                numbers = tuple(x.node for x in args if x is not None)
                made.append(graph.add(dataclasses.replace(node, args=numbers)))
        found = [x for x in map(made.__getitem__, program.keeps) if x is not None]
        return functools.reduce(functools.partial(graph.apply, "and"), found)

    return keeps


def _argument(name: str) -> Node:
    return Node("argument", "f32" if name == "score" else "i32", value=name)


def _run(
    role: str, function: Any, graph: Graph, captures: Captures, arguments: Sequence[Traced]
) -> Traced:
    """Calls a function with stand-ins for its arguments and its captured arrays."""
    graph.function = getattr(function, "__name__", role)
    try:
        bound = captures.function(role, function, ARGUMENTS[-len(arguments) :])
        result = bound(*arguments)
    except AttnError:
        raise
    except RecursionError as error:
        raise SpecError(
            located(TOO_DEEP.format(graph.function), captures.start(function))
        ) from error
    except Exception as error:
        what = f"{graph.function} raised {type(error).__name__}: {error}"
        if (name := _function_of_jax(error)) is not None:
            what = (
                f"{graph.function} calls {name} of jax, which takes no traced values: use that of "
                "attn_mlir.trace or numpy"
            )
        raise SpecError(located(what, spot_of_error(error, graph.codes))) from error
    if result is None:
        raise SpecError(located(f"{graph.function} returns nothing", captures.start(function)))
    captures.check_unwritten()
    return graph.lift(result)


def _function_of_jax(error: Exception) -> str | None:
    """The name of the jax function that was called with a stand-in, from jax's error message."""
    if not isinstance(error, TypeError) or Traced.__qualname__ not in str(error):
        return None
    match = re.search(
        r"<function (\w+) at|^(\w+) requires ndarray|passed to (\w+) at|not a valid (JAX) type",
        str(error),
    )
    if match is None:
        return None
    name = next(name for name in match.groups() if name)
    return "a function" if name == "JAX" else name


def _function(op: str) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        stand_in = next((arg for arg in args if isinstance(arg, Traced)), None)
        if stand_in is None:
            return _by_torch(op, args)
        return stand_in.graph.call(op, args, {})

    apply.__name__ = op
    apply.__doc__ = f"`{op}` of traced values and numbers."
    return apply


def _by_torch(op: str, args: Sequence[Any]) -> Any:
    """A torch function for an operation, as PyTorch evaluates or traces modifiers as well."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not any(isinstance(arg, torch.Tensor) for arg in args):
        raise SpecError(f"{op} of attn_mlir.trace is for score_mod and mask_mod functions")
    if op not in ("minimum", "maximum") or all(isinstance(arg, torch.Tensor) for arg in args):
        home = torch if hasattr(torch, op) else torch.nn.functional
        return torch.pow(*args) if op == "power" else getattr(home, op)(*args)
    tensor, bound = args if isinstance(args[0], torch.Tensor) else args[::-1]
    return torch.clamp(tensor, **{"max" if op == "minimum" else "min": bound})


exp = _function("exp")
exp2 = _function("exp2")
expm1 = _function("expm1")
log = _function("log")
log2 = _function("log2")
log1p = _function("log1p")
tanh = _function("tanh")
sigmoid = _function("sigmoid")
erf = _function("erf")
gelu = _function("gelu")
silu = _function("silu")
softplus = _function("softplus")
sin = _function("sin")
cos = _function("cos")
sqrt = _function("sqrt")
power = _function("power")
floor = _function("floor")
ceil = _function("ceil")
round = _function("round")
trunc = _function("trunc")
sign = _function("sign")
minimum = _function("minimum")
maximum = _function("maximum")
clip = _function("clip")
where = _function("where")
isnan = _function("isnan")
isinf = _function("isinf")
isfinite = _function("isfinite")
