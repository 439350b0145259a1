"""Operators of PyTorch whose calls are plans: arguments by their names in, results of the plan out.

A fake kernel makes the plan as the operator does, by shapes, strides and dtypes only, and refuses what
planning refuses.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attn_mlir.api.plan import Plan
from attn_mlir.errors import SpecError
from attn_mlir.pytorch.caches import TYPES
from attn_mlir.pytorch.operators import known
from attn_mlir.runtime.call.tensors import described

torch: Any = importlib.import_module("torch")

BREAKS = ("out", "device", "stream")  # the graph, where one is given
OUTPUT_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}

Seeing = Callable[[Any, str], Any]  # the view of a tensor, given the tensor and its name
Planning = Callable[[Seeing, dict[str, Any]], Plan]


def breaks(given: Mapping[str, Any], *names: str) -> bool:
    """Whether a call breaks the graph of PyTorch's compiler.

    Args:
      given: its options by name.
      names: those that no graph can hold, beside `BREAKS`.

    Raises:
      SpecError: one is given under another tracer, which has no breaks.
    """
    found = [name for name in (*names, *BREAKS) if given.get(name) is not None]
    if found and not torch.compiler.is_dynamo_compiling():
        raise SpecError(
            f"{found[0]} cannot be recorded by torch.jit.trace, make_fx and torch.export, nor transformed by "
            "torch.func: leave it out"
        )
    return bool(found)


def options_of(function: Any, without: Sequence[str]) -> dict[str, str]:
    """The options of a function of `api` with their types in the schema.

    Args:
      without: names of parameters that are no options of the operator.
    """
    parameters = inspect.signature(function).parameters.values()
    return {x.name: TYPES[str(x.annotation)] for x in parameters if x.name not in without}


def seen_by(seen: Seeing, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are not None, by name, with views in the place of tensors."""
    found = {name: value for name, value in given.items() if value is not None}
    return {
        name: seen(value, name) if isinstance(value, torch.Tensor) else value
        for name, value in found.items()
    }


def planned_by(function: Any, *arguments: Any, **options: Any) -> Plan:
    """The plan of a call of a function of `api`, which `carried_out` made.

    Raises:
      SpecError: says which argument is wrong.
    """
    planner: Callable[..., Plan] = function.planner
    return planner(*arguments, **options)


def _no_batching(name: str) -> Callable[..., Any]:
    """The rule of `torch.vmap` for an operator whose function has a batch of its own."""

    def refuse(*_: Any, **_options: Any) -> Any:
        raise SpecError(
            f"attn_mlir::{name} has no rule for torch.vmap: call its function with the batch, which it has an "
            "axis for, or scaled_dot_product_attention or flex_attention of attn_mlir.torch, which have a rule"
        )

    return refuse


def planned_operator(
    name: str,
    plan: Planning,
    operands: Mapping[str, str],
    options: Mapping[str, str],
    *,
    results: Sequence[str] = (),
    written: Sequence[str] = (),
) -> tuple[list[str], Any]:
    """Makes an operator.

    Args:
      name: its name, in `attn_mlir`.
      plan: makes the plan of a call from its arguments by name.
      operands: its arguments without a default, with their types in the schema.
      options: its further arguments likewise, None when left out.
      results: names of the plan's results that it returns; of those that a plan lacks an empty tensor
        of f32.
      written: names of the arguments that it changes.

    Returns:
      The names of its arguments in their order, and the operator.
    """
    names = [*operands, *options]

    def returned(found: Mapping[str, Any], like: Any) -> Any:
        made = (found.get(x) for x in results)
        empty = (like.new_empty(0, dtype=torch.float32) if x is None else x for x in made)
        return tuple(empty) if results else None

    def call(*arguments: Any, **given: Any) -> Any:
        given |= dict(zip(names, arguments, strict=False))
        made = plan(lambda tensor, _: tensor.detach(), given).execute()
        return returned(made, given[names[0]])

    def fake(*arguments: Any, **given: Any) -> Any:
        given |= dict(zip(names, arguments, strict=False))
        if "num_splits" in options and not given.get("num_splits"):
            given["num_splits"] = 1  # results do not depend on it
        given["scale"] = known(given.get("scale"))
        like = given[names[0]]
        made = {
            x.name: like.new_empty(x.shape, dtype=OUTPUT_DTYPES[x.dtype])
            for x in plan(described, given).results
        }
        return returned(made, like)

    told = [f"{kind} {x}" for x, kind in operands.items()]
    told += [f"{kind} {x}=None" for x, kind in options.items()]
    schema = f"({', '.join(told)}) -> ({', '.join(['Tensor'] * len(results))})"
    operator = torch.library.custom_op(
        f"attn_mlir::{name}", call, mutates_args=tuple(written), schema=schema
    )
    operator.register_fake(fake)
    operator.register_vmap(_no_batching(name))
    return names, operator
