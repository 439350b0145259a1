"""`attn_mlir.append_kv` in the graphs of PyTorch: an operator that writes into the cache it is given.

`attn_mlir::append_call` takes the tensors of a cache and of the new tokens, and the options of
`append_kv`, under their names; `cos`, `sin` and `interleaved` are the parts of `rotary`. It returns
nothing and declares that it changes keys, values and factors, so that graphs keep it and its order. The
fake kernel plans the call by shapes, strides and dtypes only, and refuses what planning refuses.
"""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir.api.appending import ROTARY, append_kv
from attn_mlir.api.plan import Plan
from attn_mlir.caches import CACHES
from attn_mlir.errors import SpecError
from attn_mlir.pytorch.caches import apart, check_fields, declared, put_together
from attn_mlir.pytorch.planned import (
    BREAKS,
    Seeing,
    breaks,
    options_of,
    planned_by,
    planned_operator,
    seen_by,
)
from attn_mlir.pytorch.shapes import check_argument

torch: Any = importlib.import_module("torch")

OPERANDS = {
    "k": "Tensor(a!)", "v": "Tensor(b!)?", "k_new": "Tensor", "v_new": "Tensor", "cache": "str",
}  # fmt: skip
WRITTEN = {"k_scale": "Tensor(c!)?", "v_scale": "Tensor(d!)?"}  # where every position has its own
ANGLES = {"cos": "Tensor?", "sin": "Tensor?", "interleaved": "bool?"}
OPTIONS = options_of(append_kv, (*OPERANDS, "rotary", *BREAKS)) | ANGLES


def append_in_graph(
    cache: Any, k_new: Any, v_new: Any, positions: Any = None, **options: Any
) -> None:
    """`append_kv` as an operator in a graph; arguments that no graph can hold break the graph.

    Args:
      cache, k_new, v_new, positions, options: as in `append_kv`.
    """
    options["positions"] = positions
    given = {name: value for name, value in options.items() if value is not None}
    if breaks(given) or not isinstance(cache, CACHES):
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
            check_argument(name, value)
    append_call_op(k, v, k_new, v_new, type(cache).__name__, **given)


def _planned(seen: Seeing, given: dict[str, Any]) -> Plan:
    """The launch of a call.

    Args:
      seen: returns the view of a tensor, given the tensor and its name.
      given: the operator's arguments by name.

    Raises:
      SpecError: says which argument is wrong.
    """
    found = seen_by(seen, given)
    check_fields(found, found["cache"], {**OPERANDS, **OPTIONS})
    cache = put_together(found["cache"], found["k"], found.get("v"), found)
    options = {name: found[name] for name in OPTIONS if name in found and name not in ANGLES}
    if any(name in found for name in ANGLES):
        options["rotary"] = tuple(found.get(name) for name in ANGLES)
    return planned_by(append_kv, cache, found["k_new"], found["v_new"], **options)


NAMES, append_call_op = planned_operator(
    "append_call",
    _planned,
    OPERANDS,
    declared(OPTIONS) | WRITTEN,
    written=("k", "v", *WRITTEN),
)
