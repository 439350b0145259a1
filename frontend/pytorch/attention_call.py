"""The operator for calls of `attn_mlir.attention` in PyTorch's graphs, with all their arguments.

The tensors of a call, also those of a cache, and its options are arguments of the operator
`attn_mlir::attention_call` under their names. Its fake kernel plans the call as the operator does,
by shapes, strides and dtypes only, and refuses what planning refuses.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from attn_mlir.api.attention import attention
from attn_mlir.api.plan import Plan
from attn_mlir.compiling.splits import check_num_splits
from attn_mlir.dialect.attn.program import Program
from attn_mlir.errors import SpecError
from attn_mlir.masks.text import parse_mask
from attn_mlir.pytorch.caches import TYPES, check_fields, declared, put_together, spelled
from attn_mlir.pytorch.call import as_tensor
from attn_mlir.pytorch.operators import described
from attn_mlir.trace import MaskMod, Recorded, ScoreMod, trace

torch: Any = importlib.import_module("torch")

NO_ARGUMENTS = (
    "block_mask",
    "score_mod",
    "mask_mod",
    "out",
    "device",
    "stream",
)  # name of the operator
OUTPUT_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def _options_of_attention() -> dict[str, str]:
    """The options of a call that a graph can hold, with their types in the schema."""
    found = inspect.signature(attention).parameters.values()
    names = [x for x in found if x.kind is x.KEYWORD_ONLY and x.name not in (*NO_ARGUMENTS, "mask")]
    return {x.name: TYPES[str(x.annotation)] for x in names}


OPTIONS = _options_of_attention()


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
    """Calls the operator, with traced modifiers.

    Args:
      given: options, and fields of a cache, by name.
    """
    program, captured = trace(score_mod, mask_mod)
    ranks = [tensor.rank for tensor in program.tensors] if program is not None else []
    read = [as_tensor(x, n) for x, n in zip(captured.values(), ranks, strict=True)]
    modifier = "" if program is None else program.canonical()
    return attention_call_op(q, k, v, read, modifier, mask, cache, **given)


def _planned(seen: Callable[[Any, str], Any], given: Mapping[str, Any]) -> Plan:
    """The launches of a call.

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
    cache, v = found["cache"], found.get("v")
    k = found["k"]
    check_fields(found, cache, {**OPERANDS, **OPTIONS})
    if cache:
        k, v = put_together(cache, k, v, found), None
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
    """The operator: returns O, and LSE or an empty tensor."""
    given |= dict(zip(NAMES, arguments, strict=False))
    results = _planned(lambda tensor, _: tensor.detach(), given).execute()
    empty = given["q"].new_empty(0, dtype=torch.float32)
    return results["o"], results.get("lse", empty)


def _fake_attention_call(*arguments: Any, **given: Any) -> tuple[Any, Any]:
    """The fake kernel: results by shape and dtype, which do not depend on the number of parts."""
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
    """The names of the operator's arguments, and its schema."""
    told = declared(OPTIONS)
    text = ", ".join([*(f"{kind} {name}" for name, kind in OPERANDS.items()), *spelled(told)])
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
