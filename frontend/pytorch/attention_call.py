"""The operator for calls of `attn_mlir.attention` in PyTorch's graphs, with all their arguments.

The tensors of a call, also those of a cache, and its options are arguments of the operator
`attn_mlir::attention_call` under their names. Its fake kernel plans the call as the operator does,
by shapes, strides and dtypes only, and refuses what planning refuses.
"""

from __future__ import annotations

from typing import Any

from attn_mlir.api.attention import attention
from attn_mlir.api.plan import Plan
from attn_mlir.dialect.attn.program import Program
from attn_mlir.errors import SpecError
from attn_mlir.masks.text import parse_mask
from attn_mlir.pytorch.caches import check_fields, declared, put_together
from attn_mlir.pytorch.call import as_tensor
from attn_mlir.pytorch.planned import (
    BREAKS,
    Seeing,
    options_of,
    planned_by,
    planned_operator,
    seen_by,
)
from attn_mlir.trace import MaskMod, Recorded, ScoreMod, trace

OPERANDS = {
    "q": "Tensor", "k": "Tensor", "v": "Tensor?", "captured": "Tensor[]",
    "modifier": "str", "mask": "str", "cache": "str",
}  # fmt: skip
OPTIONS = options_of(attention, (*OPERANDS, "block_mask", "score_mod", "mask_mod", *BREAKS))


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


def _planned(seen: Seeing, given: dict[str, Any]) -> Plan:
    """The launches of a call.

    Args:
      seen: returns the view of a tensor, given the tensor and its name.
      given: the operator's arguments by name.

    Raises:
      SpecError: says which argument is wrong.
    """
    found = seen_by(seen, given)
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
    return planned_by(attention, found["q"], k, v, mask=parse_mask(found["mask"]), **options)


NAMES, attention_call_op = planned_operator(
    "attention_call", _planned, OPERANDS, declared(OPTIONS), results=("o", "lse")
)
