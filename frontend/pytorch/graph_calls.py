"""Calls of `api` as operators of PyTorch, with flattened arguments.

The tensors of a call, also those of a cache, and its options are arguments of the operator under
their names: a cache is its keys, its values, its other fields, and the name of its class; a mask is
its text. The operator and its fake kernel rebuild the arguments and plan the call, so a graph is
refused when it is traced.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_mlir.api.plan import Plan
from attn_mlir.caches import CACHES
from attn_mlir.compiling.dtypes import OUT_DTYPES, dtype_name
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.errors import SpecError
from attn_mlir.masks.text import parse_mask
from attn_mlir.pytorch.caches import TYPES, check_fields, declared, flatten_cache, rebuild_cache
from attn_mlir.pytorch.operators import LONGEST, static_numbers
from attn_mlir.pytorch.planned import BREAKS, OUTPUT_DTYPES, ViewOf, breaks, with_views
from attn_mlir.pytorch.shapes import check_argument
from attn_mlir.runtime.call.tensors import described
from attn_mlir.trace import Recorded

torch: Any = importlib.import_module("torch")

VALUES = "values"  # an operator's name for the values of a cache if the function has none


@dataclass(frozen=True)
class GraphCall:
    """A function of `api` as an operator.

    Attributes:
      function: made by `declared_by`; its signature declares the options.
      operands: arguments of the operator without a default, by name with their types in the schema.
      cache: the function's argument that may be a cache; "" where none may.
      rows: the operator's names for the keys and the values of a cache.
      renamed: the operator's names for arguments of the function whose names are fields of caches.
      excluded: the function's arguments that are no options of the operator.
      extra: options that the function has under no name of its own.
      only_caches: whether a call without a cache is no operator.
      differentiable: arguments whose gradients autograd gets.
      options: all options, None when left out, likewise.
    """

    function: Any
    operands: Mapping[str, str]
    cache: str = ""
    rows: tuple[str, str] = ("k", "v")
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    excluded: Sequence[str] = ()
    extra: Mapping[str, str] = field(default_factory=dict[str, str])
    only_caches: bool = False
    differentiable: Sequence[str] = ()
    names: tuple[str, ...] = field(init=False)
    options: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        parameters = inspect.signature(self.function).parameters
        left_out = (*self.operands, *self.excluded, *self.renamed, *BREAKS)
        options = {n: TYPES[str(x.annotation)] for n, x in parameters.items() if n not in left_out}
        options |= {name: "SymInt?" for name in LONGEST if name in options}
        options |= {self.renamed[name]: "Tensor?" for name in self.renamed}
        if self.cache and self.rows[1] not in self.operands:
            options[self.rows[1]] = "Tensor?"
        vars(self).update(names=tuple(parameters), options=options | dict(self.extra))

    @property
    def arguments(self) -> list[str]:
        """The names of the operator's arguments, in their order."""
        return [*self.operands, *self.declared]

    @property
    def declared(self) -> dict[str, str]:
        """All arguments of the operator with a default: options, and fields of caches."""
        return declared(self.options) if self.cache else dict(self.options)

    def by_name(self, arguments: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call of the function that are not None, by name."""
        values = dict(zip(self.names, arguments, strict=False)) | dict(options)
        return {name: value for name, value in values.items() if value is not None}

    def flattened(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """The operator's arguments, from those of the function.

        Raises:
          SpecError: an argument is no plain tensor, or requires a gradient.
        """
        arguments = dict(named)
        for name, new_name in self.renamed.items():
            if name in arguments:
                arguments[new_name] = arguments.pop(name)
        if self.cache:
            cache, (keys, values) = arguments.pop(self.cache), self.rows
            if isinstance(cache, CACHES):
                arguments[keys], arguments[values], fields = flatten_cache(cache)
                arguments |= {**fields, "cache": type(cache).__name__}
            else:
                arguments["cache"], arguments[keys] = "", cache
        if "mask" in self.operands:
            arguments["mask"] = str(arguments.get("mask", "full"))
        if "out_dtype" in arguments:
            arguments["out_dtype"] = dtype_name(arguments["out_dtype"], "out_dtype", OUT_DTYPES)
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor):
                check_argument(name, value, has_gradient=name in self.differentiable)
        return arguments

    def unflattened(self, view_of: ViewOf, named: Mapping[str, Any]) -> dict[str, Any]:
        """The function's arguments, from those of the operator: the inverse of `flattened`.

        Args:
          view_of: returns the view of a tensor, given the tensor and its name.

        Raises:
          SpecError: says which argument is wrong.
        """
        viewed = with_views(view_of, named)
        declared = {**self.operands, **self.options}
        arguments = {name: viewed[name] for name in declared if name in viewed}
        if "mask" in arguments:
            arguments["mask"] = parse_mask(arguments["mask"])
        if self.cache:
            kind, (keys, values) = arguments.pop("cache"), self.rows
            check_fields(viewed, kind, declared)
            if kind:
                k, v = arguments.pop(keys), arguments.pop(values, None)
                arguments[self.cache] = rebuild_cache(kind, k, v, viewed)
            else:
                arguments[self.cache] = arguments.pop(keys)
        for name, new_name in self.renamed.items():
            if new_name in arguments:
                arguments[name] = arguments.pop(new_name)
        return arguments

    def operator(
        self,
        name: str,
        *,
        results: Sequence[str] = (),
        written: Sequence[str] = (),
        has_others: bool = False,
    ) -> Any:
        """Makes the operator.

        Its fake kernel plans a call as the operator does, by shapes, strides and dtypes only.

        Args:
          name: its name, in `attn_mlir`.
          results: names of the plan's results that it returns; of those that a plan lacks an empty
            tensor of f32.
          written: names of the arguments that it changes.
          has_others: whether it also returns the list of the plan's other results.
        """
        operands, options, names = self.operands, self.declared, self.arguments

        def returned(results_by_name: Mapping[str, Any], like: Any) -> Any:
            outputs = (results_by_name.get(x) for x in results)
            empty = (like.new_empty(0, dtype=torch.float32) if x is None else x for x in outputs)
            others = [x for name, x in results_by_name.items() if name not in results]
            return (*empty, *([others] if has_others else [])) if results else None

        def call(*arguments: Any, **values: Any) -> Any:
            values |= dict(zip(names, arguments, strict=False))
            outputs = self._plan(lambda tensor, _: tensor.detach(), values).execute()
            return returned(outputs, values[names[0]])

        def fake(*arguments: Any, **values: Any) -> Any:
            values |= dict(zip(names, arguments, strict=False))
            if "num_splits" in options and not values.get("num_splits"):
                values["num_splits"] = 1  # results do not depend on it
            values = static_numbers(values)
            like = values[names[0]]
            outputs = {
                x.name: like.new_empty(x.shape, dtype=OUTPUT_DTYPES[x.dtype])
                for x in self._plan(described, values).results
            }
            return returned(outputs, like)

        schema_arguments = [f"{kind} {x}" for x, kind in operands.items()]
        schema_arguments += [f"{kind} {x}=None" for x, kind in options.items()]
        types = ["Tensor"] * len(results) + ["Tensor[]"] * has_others
        schema = f"({', '.join(schema_arguments)}) -> ({', '.join(types)})"
        operator = torch.library.custom_op(
            f"attn_mlir::{name}", call, mutates_args=tuple(written), schema=schema
        )
        operator.register_fake(fake)
        operator.register_vmap(_no_batching(name))
        return operator

    def in_graph(self, operator: Any) -> Callable[..., Any]:
        """The function for tracers: the operator, or this one where an argument breaks graphs."""

        def call(*arguments: Any, **options: Any) -> Any:
            values = self.by_name(arguments, options)
            is_plain = self.only_caches and not isinstance(values.get(self.cache), CACHES)
            if breaks(values) or is_plain:
                return self.function(*arguments, **options)
            results = operator(**self.flattened(values))
            has_no_lse = "return_lse" in self.options and not values.get("return_lse")
            return results[0] if has_no_lse else results

        return call

    def _plan(self, view_of: ViewOf, values: Mapping[str, Any]) -> Plan:
        planner: Callable[..., Plan] = self.function.planner
        return planner(**self.unflattened(view_of, values))


CAPTURED = "captured_gradients"  # an operator's name for the names of captured tensors


class ModifiedCall(GraphCall):
    """A function whose modifiers are traced: `modifier` is a program, `captured` what it reads."""

    def unflattened(self, view_of: ViewOf, named: Mapping[str, Any]) -> dict[str, Any]:
        arguments = super().unflattened(view_of, named)
        modifier, captured = arguments.pop("modifier"), arguments.pop("captured")
        if modifier:
            program = Program.from_json(modifier)
            names = [tensor.name for tensor in program.tensors]
            if len(captured) != len(names):
                raise SpecError(f"captured must hold {len(names)} tensors, got {len(captured)}")
            arrays = {name: view_of(x, name) for name, x in zip(names, captured, strict=True)}
            arguments["score_mod"] = Recorded(program, arrays)
        if CAPTURED in arguments:
            arguments["captured"] = arguments.pop(CAPTURED)
        return arguments


def _no_batching(name: str) -> Callable[..., Any]:
    """The rule of `torch.vmap` for an operator whose function has a batch of its own."""

    def refuse(*_: Any, **_options: Any) -> Any:
        raise SpecError(
            f"attn_mlir::{name} has no rule for torch.vmap: call its function with the batch, "
            "which it has an axis for, or scaled_dot_product_attention or flex_attention of "
            "attn_mlir.torch, which have a rule"
        )

    return refuse
