"""The operator that `attn_mlir.attention` is in the graphs of PyTorch, for all that a call can say.

Tensors of a call, those of a cache among them, are arguments of the operator `attn_mlir::attention_call`
under their names; so are its options. Its fake kernel plans the call as the operator does, of shapes,
strides and dtypes alone, and refuses what planning refuses.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from attn_mlir.api.attention import attention
from attn_mlir.api.plan import Plan
from attn_mlir.caches import CACHES
from attn_mlir.compiling.splits import check_num_splits
from attn_mlir.dialect.attn.program import Program
from attn_mlir.errors import SpecError
from attn_mlir.masks.text import parse_mask
from attn_mlir.pytorch.call import as_tensor
from attn_mlir.pytorch.operators import described
from attn_mlir.trace import MaskMod, Recorded, ScoreMod, trace

torch: Any = importlib.import_module("torch")

NO_ARGUMENTS = ("block_mask", "score_mod", "mask_mod", "out", "device", "stream")  # of the operator
OUTPUT_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
FIRST = 2  # of a cache's fields stand in the place of k and v
_TYPES = {
    "Any": "Tensor?", "bool": "bool", "str": "str", "str | None": "str?", "int": "int",
    "int | None": "int?", "float | None": "float?", "object": "str?",  # out_dtype, by name
}  # fmt: skip


def _options_of_attention() -> dict[str, str]:
    """The options of a call by name, with their types in a schema: those that a graph can hold."""
    found = inspect.signature(attention).parameters.values()
    names = [x for x in found if x.kind is x.KEYWORD_ONLY and x.name not in (*NO_ARGUMENTS, "mask")]
    return {x.name: _TYPES[str(x.annotation)] for x in names}


def _fields_of(cache: Any) -> dict[str, str]:
    """The fields of a kind of cache behind the first two, likewise."""
    return {x.name: _TYPES[str(x.type)] for x in dataclasses.fields(cache)[FIRST:]}


OPTIONS = _options_of_attention()
CACHES_BY_NAME = {cache.__name__: cache for cache in CACHES}
FIELDS = {name: _fields_of(cache) for name, cache in CACHES_BY_NAME.items()}


def modified_call(
    q: Any,
    k: Any,
    v: Any = None,
    *,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    mask: str,
    cache: str,
    **given: Any,
) -> tuple[Any, Any]:
    """The operator with what tracing makes of modifiers.

    Args:
      given: options and fields of a cache by name.
    """
    program, captured = trace(score_mod, mask_mod)
    ranks = [tensor.rank for tensor in program.tensors] if program is not None else []
    read = [as_tensor(x, n) for x, n in zip(captured.values(), ranks, strict=True)]
    modifier = "" if program is None else program.canonical()
    return attention_call_op(q, k, v, read, modifier, mask, cache, **given)


def _planned(seen: Callable[[Any, str], Any], given: Mapping[str, Any]) -> Plan:
    """The launches of a call.

    Args:
      seen: what stands for a tensor of that name.
      given: arguments of the operator by name.

    Raises:
      SpecError: says which argument is wrong.
    """
    found = {name: value for name, value in given.items() if value is not None}
    for name, value in found.items():
        if isinstance(value, torch.Tensor):
            found[name] = seen(value, name)
    cache, v = found["cache"], found.get("v")
    kind, k = FIELDS.get(cache, {}), found["k"]
    for name in found:
        if name not in {*NAMES[: len(OPERANDS)], *OPTIONS, *kind}:
            raise SpecError(f"{name} is no field of {cache or 'k and v as tensors'}: leave it out")
    if cache:
        fields = {name: found[name] for name in kind if name in found}
        k, v = CACHES_BY_NAME[cache](k, v, **fields), None
    options = {name: found[name] for name in OPTIONS if name in found}
    if found["modifier"]:
        program = Program.from_json(found["modifier"])
        names, captured = [tensor.name for tensor in program.tensors], found["captured"]
        if len(captured) != len(names):
            raise SpecError(f"captured must hold {len(names)} tensors, got {len(captured)}")
        arrays = {name: seen(x, name) for name, x in zip(names, captured, strict=True)}
        options["score_mod"] = Recorded(program, arrays)
    planner: Callable[..., Plan] = getattr(attention, "planner")  # noqa: B009
    return planner(found["q"], k, v, mask=parse_mask(found["mask"]), **options)


def _attention_call(*arguments: Any, **given: Any) -> tuple[Any, Any]:
    """The operator: O, and LSE or an empty tensor."""
    given |= dict(zip(NAMES, arguments, strict=False))
    results = _planned(lambda tensor, _: tensor.detach(), given).execute()
    empty = given["q"].new_empty(0, dtype=torch.float32)
    return results["o"], results.get("lse", empty)


def _fake_attention_call(*arguments: Any, **given: Any) -> tuple[Any, Any]:
    """Shapes and dtypes of the operator's results, which the number of parts does not change."""
    given |= dict(zip(NAMES, arguments, strict=False))
    if check_num_splits(given.get("num_splits", 1)) == 0:
        given["num_splits"] = 1
    q = given["q"]
    results = {
        x.name: q.new_empty(x.shape, dtype=OUTPUT_DTYPES[x.dtype])
        for x in _planned(described, given).results
    }
    return results["o"], results.get("lse", q.new_empty(0, dtype=torch.float32))


def _schema() -> tuple[list[str], str]:
    """Names of the operator's arguments, and its schema: options and fields of caches by name."""
    told = dict(OPTIONS)
    for fields in FIELDS.values():
        told |= {name: kind if kind.endswith("?") else f"{kind}?" for name, kind in fields.items()}
    defaults = {"bool": "False", "int": "1"}  # of num_splits, the only integer that has to be one
    declared = [f"{kind} {name}={defaults.get(kind, 'None')}" for name, kind in told.items()]
    text = ", ".join([*(f"{kind} {name}" for name, kind in OPERANDS.items()), *declared])
    return [*OPERANDS, *told], f"({text}) -> (Tensor, Tensor)"


OPERANDS = {
    "q": "Tensor", "k": "Tensor", "v": "Tensor?", "captured": "Tensor[]",
    "modifier": "str", "mask": "str", "cache": "str",
}  # fmt: skip
NAMES, SCHEMA = _schema()
attention_call_op: Any = torch.library.custom_op(
    "attn_mlir::attention_call", _attention_call, mutates_args=(), schema=SCHEMA
)
attention_call_op.register_fake(_fake_attention_call)
