"""`attn_mlir.append_kv` in the graphs of PyTorch: an operator that writes into its cache.

`attn_mlir::append_call` takes the tensors of a cache and of the new tokens, and the options of
`append_kv`, under their names; `cos`, `sin` and `interleaved` are the parts of `rotary`. It returns
nothing and declares that it changes keys, values and scales, so that graphs keep it and its order.
The fake kernel plans the call by shapes, strides and dtypes only, and refuses what planning
refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_mlir.api.appending import ROTARY, append_kv
from attn_mlir.errors import SpecError
from attn_mlir.pytorch.graph_calls import GraphCall
from attn_mlir.pytorch.planned import ViewOf

OPERANDS = {
    "k": "Tensor(a!)", "v": "Tensor(b!)?", "k_new": "Tensor", "v_new": "Tensor", "cache": "str",
}  # fmt: skip
WRITTEN = {"k_scale": "Tensor(c!)?", "v_scale": "Tensor(d!)?"}  # where every position has its own
ANGLES = {"cos": "Tensor?", "sin": "Tensor?", "interleaved": "bool?"}


class AppendCall(GraphCall):
    """`append_kv` as an operator, which has the parts of `rotary` one by one."""

    @property
    def declared(self) -> dict[str, str]:
        return super().declared | WRITTEN

    def flattened(self, named: Mapping[str, Any]) -> dict[str, Any]:
        arguments = dict(named)
        if "rotary" in arguments:
            rotary: Any = arguments.pop("rotary")
            is_triple = type(rotary) in (tuple, list) and len(rotary) == len(ANGLES)
            if not is_triple:
                raise SpecError(f"{ROTARY}, got {type(rotary).__name__}")
            arguments |= dict(zip(ANGLES, rotary, strict=True))
        return super().flattened(arguments)

    def unflattened(self, view_of: ViewOf, named: Mapping[str, Any]) -> dict[str, Any]:
        arguments = super().unflattened(view_of, named)
        angles = [arguments.pop(name, None) for name in ANGLES]
        if any(x is not None for x in angles):
            arguments["rotary"] = tuple(angles)
        return arguments


APPEND = AppendCall(
    append_kv, OPERANDS, cache="cache", excluded=("rotary",), extra=ANGLES, only_caches=True
)
append_call_op = APPEND.operator("append_call", written=("k", "v", *WRITTEN))
append_in_graph = APPEND.in_graph(append_call_op)
