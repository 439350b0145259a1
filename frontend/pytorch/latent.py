"""Latent attention in the graphs of PyTorch: an operator for each of its three functions.

`attn_mlir::mla_call`, `attn_mlir::sparse_mla_call` and `attn_mlir::mla_decode_call` take the operands
and options of `mla`, `sparse_mla` and `mla_decode` under their names, and a latent cache as its rows and
the names of its fields. Lists of rows for `mla_decode` are `lists`, since a cache may have `indices`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from attn_mlir.api.mla import mla
from attn_mlir.api.mla_decode import mla_decode
from attn_mlir.api.plan import Plan
from attn_mlir.api.sparse_mla import sparse_mla
from attn_mlir.caches import CACHES
from attn_mlir.compiling.dtypes import OUT_DTYPES, dtype_name
from attn_mlir.masks.text import parse_mask
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

VALUES = "values"  # of a cache, which a latent one has none of
LISTS = "lists"


def mla_in_graph(q_nope: Any, q_rope: Any, k_nope: Any, k_rope: Any, v: Any, **options: Any) -> Any:
    """`mla` as an operator in a graph; arguments that no graph can hold break the graph.

    Args:
      q_nope, q_rope, k_nope, k_rope, v, options: as in `mla`.
    """
    operands = {"q_nope": q_nope, "q_rope": q_rope, "k_nope": k_nope, "k_rope": k_rope, "v": v}
    if breaks(options):
        return mla(**operands, **options)
    given = _told(operands, options, "k_rope")
    o, lse = mla_call_op(**given)
    return (o, lse) if given.get("return_lse") else o


def sparse_mla_in_graph(q: Any, kv: Any, indices: Any, **options: Any) -> Any:
    """`sparse_mla` as an operator in a graph; arguments that no graph can hold break the graph.

    Args:
      q, kv, indices, options: as in `sparse_mla`.
    """
    operands = {"q": q, "kv": kv, "indices": indices}
    if breaks(options):
        return sparse_mla(**operands, **options)
    return sparse_mla_call_op(**_told(operands, options))


def mla_decode_in_graph(q: Any, cache: Any, **options: Any) -> Any:
    """`mla_decode` as an operator in a graph; arguments that no graph can hold break the graph.

    Args:
      q, cache, options: as in `mla_decode`.
    """
    if breaks(options) or not isinstance(cache, CACHES):
        return mla_decode(q, cache, **options)
    lists = options.pop("indices", None)
    options[LISTS] = lists
    return mla_decode_call_op(**_told({"q": q, "rows": cache}, options, "rows"))


def _told(operands: dict[str, Any], options: dict[str, Any], rows: str = "") -> dict[str, Any]:
    """The arguments of an operator by name.

    Args:
      rows: name of the operand that may be a cache; "" where none may.

    Raises:
      SpecError: an argument requires a gradient.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if rows:
        given["mask"], given["cache"] = str(given.get("mask", "full")), ""
        if isinstance(operands[rows], CACHES):
            given["cache"] = type(operands[rows]).__name__
            stored, values, fields = apart(operands[rows])
            operands = {**operands, rows: stored}
            given |= fields if values is None else {**fields, VALUES: values}
    if "out_dtype" in given:
        given["out_dtype"] = dtype_name(given["out_dtype"], "out_dtype", OUT_DTYPES)
    given |= operands
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            check_argument(name, value)
    return given


def _planned(
    function: Callable[..., Any],
    operands: dict[str, str],
    options: dict[str, str],
    rows: str,
    seen: Seeing,
    given: dict[str, Any],
) -> Plan:
    """The launches of a call.

    Args:
      function: of `api`.
      operands, options: arguments of its operator without and with defaults.
      rows: as of `_told`.
      seen: returns the view of a tensor, given the tensor and its name.
      given: the operator's arguments by name.

    Raises:
      SpecError: says which argument is wrong.
    """
    found = seen_by(seen, given)
    arguments = {name: value for name, value in found.items() if name in {**operands, **options}}
    if rows:
        kind, mask = arguments.pop("cache"), parse_mask(arguments.pop("mask"))
        check_fields(found, kind, {**operands, **options})
        values, stored = arguments.pop(VALUES, None), arguments.pop(rows)
        cache = put_together(kind, stored, values, found) if kind else stored
        arguments |= {"cache" if rows == "rows" else rows: cache, "mask": mask}
    if LISTS in arguments:
        arguments["indices"] = arguments.pop(LISTS)
    return planned_by(function, **arguments)


def _operator(
    function: Any, operands: str, results: tuple[str, ...], rows: str = "", lists: str = ""
) -> Any:
    """The operator for a function of `api`.

    Args:
      operands: names of the tensors that it always has.
      results: names of what the function returns.
      rows: as of `_told`.
      lists: name of the function's option that the operator calls `lists`, if any.
    """
    required = {**dict.fromkeys(operands.split(), "Tensor"), "scale": "Scalar"}
    required |= {"mask": "str", "cache": "str"} if rows else {}
    options = options_of(function, (*required, *BREAKS, lists))
    options |= {LISTS: "Tensor?"} if lists else {}
    options |= {VALUES: "Tensor?"} if rows else {}
    return planned_operator(
        f"{function.__name__}_call",
        partial(_planned, function, required, options, rows),
        required,
        declared(options) if rows else options,
        results=results,
    )[1]


mla_call_op = _operator(mla, "q_nope q_rope k_nope k_rope v", ("o", "lse"), "k_rope")
sparse_mla_call_op = _operator(sparse_mla, "q kv indices", ("o", "lse", "max_logits"))
mla_decode_call_op = _operator(mla_decode, "q rows", ("o", "lse"), "rows", "indices")
