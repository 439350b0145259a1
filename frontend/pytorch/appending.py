"""`attn_mlir.append_kv` in the graphs of PyTorch: an operator that writes into the cache it is given.

`attn_mlir::append_call` takes the tensors of a cache and of the new tokens, and the options of
`append_kv`, under their names; `cos`, `sin` and `interleaved` are the parts of `rotary`. It returns
nothing and declares that it changes keys, values and factors, so that graphs keep it and its order. The
fake kernel plans the call by shapes, strides and dtypes only, and refuses what planning refuses.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from attn_mlir.api.appending import ROTARY, append_kv
from attn_mlir.api.plan import Plan
from attn_mlir.caches import CACHES
from attn_mlir.errors import SpecError
from attn_mlir.pytorch.caches import (
    TYPES,
    apart,
    check_fields,
    declared,
    put_together,
    spelled,
)
from attn_mlir.pytorch.operators import described
from attn_mlir.pytorch.shapes import check_gradient

torch: Any = importlib.import_module("torch")

BREAKS = ("device", "stream")  # names of the graph's arguments, where one is given
OPERANDS = {
    "k": "Tensor(a!)", "v": "Tensor(b!)?", "k_new": "Tensor", "v_new": "Tensor", "cache": "str",
}  # fmt: skip
WRITTEN = {"k_scale": "Tensor(c!)?", "v_scale": "Tensor(d!)?"}  # where every position has its own
ANGLES = {"cos": "Tensor?", "sin": "Tensor?", "interleaved": "bool?"}


def append_in_graph(
    cache: Any, k_new: Any, v_new: Any, positions: Any = None, **options: Any
) -> None:
    """`append_kv` as an operator in a graph; arguments that no graph can hold break the graph.

    Args:
      cache, k_new, v_new, positions, options: as in `append_kv`.
    """
    options["positions"] = positions
    given = {name: value for name, value in options.items() if value is not None}
    if any(name in given for name in BREAKS) or not isinstance(cache, CACHES):
        append_kv(cache, k_new, v_new, **options)
        return
    if "rotary" in given:
        rotary: Any = given.pop("rotary")
        is_triple = type(rotary) in (tuple, list) and len(rotary) == len(ANGLES)
        if not is_triple:
            raise SpecError(f"{ROTARY}, got {type(rotary).__name__}")
        given |= dict(zip(ANGLES, rotary, strict=True))
    k, v, fields = apart(cache)
    given |= fields
    for name, value in {"k_new": k_new, "v_new": v_new, "k": k, "v": v, **given}.items():
        if isinstance(value, torch.Tensor):
            check_gradient(name, value)
    append_call_op(k, v, k_new, v_new, type(cache).__name__, **given)


def _planned(seen: Callable[[Any, str], Any], given: Mapping[str, Any]) -> Plan:
    """The launch of a call.

    Args:
      seen: returns the view of a tensor, given the tensor and its name.
      given: the operator's arguments by name.

    Raises:
      SpecError: says which argument is wrong.
    """
    found = {name: value for name, value in given.items() if value is not None}
    for name, value in found.items():
        if isinstance(value, torch.Tensor):
            found[name] = seen(value, name)
    check_fields(found, found["cache"], {**OPERANDS, **OPTIONS})
    cache = put_together(found["cache"], found["k"], found.get("v"), found)
    options = {name: found[name] for name in OPTIONS if name in found and name not in ANGLES}
    if any(name in found for name in ANGLES):
        options["rotary"] = tuple(found.get(name) for name in ANGLES)
    planner: Callable[..., Plan] = getattr(append_kv, "planner")  # noqa: B009
    return planner(cache, found["k_new"], found["v_new"], **options)


def _append_call(*arguments: Any, **given: Any) -> None:
    """The operator."""
    given |= dict(zip(NAMES, arguments, strict=False))
    _planned(lambda tensor, _: tensor.detach(), given).execute()


def _fake_append_call(*arguments: Any, **given: Any) -> None:
    """The fake kernel: makes the same checks as the operator."""
    given |= dict(zip(NAMES, arguments, strict=False))
    _planned(described, given)


def _options() -> dict[str, str]:
    """The options of a call with their types in the schema; `rotary` as its parts."""
    parameters = inspect.signature(append_kv).parameters.values()
    optional = [x for x in parameters if x.default is not x.empty and x.name not in BREAKS]
    return {x.name: TYPES[str(x.annotation)] for x in optional if x.name != "rotary"} | ANGLES


OPTIONS = _options()
_TOLD = declared(OPTIONS) | WRITTEN
NAMES = [*OPERANDS, *_TOLD]
SCHEMA = ", ".join([*(f"{kind} {name}" for name, kind in OPERANDS.items()), *spelled(_TOLD)])
append_call_op: Any = torch.library.custom_op(
    "attn_mlir::append_call",
    _append_call,
    mutates_args=("k", "v", *WRITTEN),
    schema=f"({SCHEMA}) -> ()",
)
append_call_op.register_fake(_fake_append_call)
