"""Sharding rules of the operators for PyTorch's DTensor.

A rank computes its shards without communication if they have whole sequences and whole groups of
heads: shards along the batch, and along heads together with their key-value heads. Shards along
queries need no communication either if no position matters. PyTorch redistributes operands of all
other placements.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.errors import SpecError, no_kernel
from attn_mlir.pytorch.attention_call import ATTENTION
from attn_mlir.pytorch.backward import BACKWARD, RESULTS
from attn_mlir.pytorch.batching import uses
from attn_mlir.pytorch.graph_calls import CAPTURED
from attn_mlir.pytorch.operators import AttentionArguments
from attn_mlir.runtime.call.torch_tensors import admit_class

tensor: Any = importlib.import_module("torch.distributed.tensor")
inner: Any = importlib.import_module("torch.distributed.tensor._op_schema")

KINDS = BATCH, HEADS, QUERIES = "batch", "head", "q"  # sharded axes, named as modifiers name them
EMPTY = tensor.Replicate()  # placement of a result that is an empty tensor

_QUERIES = {BATCH: 0, HEADS: 2, QUERIES: 1}
_KEYS = {BATCH: 0, HEADS: 2, QUERIES: None}
_ROWS = {BATCH: 0, HEADS: 1, QUERIES: 2}  # LSE and its gradient
_LENGTHS = {BATCH: 0, HEADS: None}
AXES: Mapping[str, Mapping[str, int | None]] = {
    **dict.fromkeys(("q", "o", "do"), _QUERIES),
    **dict.fromkeys(("k", "v"), _KEYS),
    **dict.fromkeys(("lse", "dlse"), _ROWS),
    "sinks": {BATCH: None, HEADS: 0, QUERIES: None},
    **dict.fromkeys(("seqused_q", "seqused_k", "cache_seqlens"), _LENGTHS),
}
"""The axis of an operand that is split with each kind of shards; None: it is replicated.

With an operand that has no entry for a kind there are no such shards.
"""
_PACKED_ROWS, _PACKED_LSE, _PACKED_LENGTHS = {HEADS: 1}, {HEADS: 0}, {HEADS: None}
PACKED: Mapping[str, Mapping[str, int | None]] = {
    **dict.fromkeys(("q", "k", "v", "o", "do"), _PACKED_ROWS),
    **dict.fromkeys(("lse", "dlse", "sinks"), _PACKED_LSE),
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"), _PACKED_LENGTHS),
}
"""The same of sequences behind one another: [total, heads, head_dim]."""


@dataclass(frozen=True)
class Rule:
    """The rule of an operator.

    Attributes:
      arguments: names of the arguments, in the order of the schema.
      results: names of the tensors that the operator returns.
      returns_lse: whether the operator returns LSE by default.
      has_others: whether the operator also returns a list of tensors, which is empty here.
    """

    arguments: Sequence[str]
    results: Sequence[str] = ("o", "lse")
    returns_lse: bool = False
    has_others: bool = False

    def strategy(self, schema: Any) -> Any:
        """PyTorch's strategy of a call: the placements that need no communication."""
        utils: Any = importlib.import_module("torch.distributed.tensor._ops.utils")
        named = dict(zip(self.arguments, schema.args_schema, strict=False))
        if named.get(CAPTURED):
            raise SpecError(no_kernel("the gradient of a captured DTensor", "pass it detached"))
        given = {name: x for name, x in named.items() if hasattr(x, "strategies")}
        before = sum(name in given for name in self.arguments[: self.arguments.index("captured")])
        read = [tensor.Replicate()] * len(getattr(named["captured"], "children", ()))
        others, count = [None] * self.has_others, len(self.results)
        rows = [[tensor.Replicate()] * (count + len(given))]
        rows += [self._placed(kind, named, given) for kind in self._kinds(named, given)]
        first = count + before
        rows = [[*x[:count], *others, *x[count:first], *read, *x[first:]] for x in rows]
        made = utils.expand_to_full_mesh_op_strategy(
            schema.get_mesh_from_args(), schema, rows, input_index=count + len(others)
        )
        made.strategies = [x for x in made.strategies if _has_whole_groups(x, given)]
        if self.has_others:
            for x in made.strategies:
                x.output_specs = (*x.output_specs[:count], ())
        return made

    def _kinds(self, named: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
        """The axes of `KINDS` along which a call may be sharded."""
        if named.get("cache") or named.get("block"):
            return []
        program = Program.from_json(named["modifier"]) if named["modifier"] else None
        axes = _axes(given)
        kinds = [x for x in KINDS if all(x in axes.get(name, ()) for name in given)]
        counts = set[str]() if named["mask"] == "full" else {QUERIES}
        counts |= {HEADS} if named.get("head_offset") else set()
        counts |= {x for x in kinds if program is not None and uses(program, x)}
        return [x for x in kinds if x not in counts]

    def _placed(self, kind: str, named: Mapping[str, Any], given: Mapping[str, Any]) -> list[Any]:
        """The placements of results and operands for shards along one axis of `KINDS`."""
        axes = _axes(given)

        def placement(name: str) -> Any:
            axis = axes[name][kind]
            is_shared = kind == HEADS and name in ("k", "v") and _kv_heads(given) == 1
            return tensor.Replicate() if axis is None or is_shared else tensor.Shard(axis)

        def result(name: str) -> Any:
            if not self.has_others:
                return placement(name) if name == "o" or self._has_lse(named) else EMPTY
            name, wanted = name.removeprefix("d"), named.get("wanted")
            if name not in given or (wanted is not None and name not in wanted):
                return EMPTY
            place = placement(name)
            return tensor.Partial() if place.is_replicate() else place

        return [*map(result, self.results), *map(placement, given)]

    def _has_lse(self, named: Mapping[str, Any]) -> bool:
        return bool(named.get("return_lse", self.returns_lse))


def _axes(given: Mapping[str, Any]) -> Mapping[str, Mapping[str, int | None]]:
    return PACKED if "cu_seqlens_q" in given or "cu_seqlens_k" in given else AXES


def _kv_heads(given: Mapping[str, Any]) -> int:
    return int(given["k"].shape[-2])


def _has_whole_groups(strategy: Any, given: Mapping[str, Any]) -> bool:
    """Whether each rank has exactly the key-value heads that its query heads read."""
    specs = dict(zip(given, strategy.input_specs, strict=False))
    shards: list[int] = []
    for name in ("q", "k"):
        axis = len(given[name].shape) - 2
        pairs = enumerate(specs[name].placements)
        shards.append(math.prod(specs[name].mesh.size(i) for i, x in pairs if x.is_shard(axis)))
    heads, kv_heads = int(given["q"].shape[-2]), _kv_heads(given)
    if shards[0] == shards[1]:
        return shards[0] == 1 or heads == kv_heads or kv_heads % shards[0] == 0
    return shards[1] == 1 and kv_heads == 1


RULES = {
    "attention": Rule(AttentionArguments._fields, returns_lse=True),
    "attention_call": Rule(ATTENTION.arguments),
    "attention_backward_call": Rule(BACKWARD.arguments, RESULTS, has_others=True),
}
"""By operator of `attn_mlir`."""


@functools.cache
def register() -> None:
    """Registers the rules once, and admits DTensor as an operand."""
    torch: Any = importlib.import_module("torch")
    propagator = tensor.DTensor._op_dispatcher.sharding_propagator
    for name, rule in RULES.items():
        operator = getattr(torch.ops.attn_mlir, name).default
        # PyTorch caches strategies by the static arguments from this one on: masks and modifiers
        begin = rule.arguments.index("captured") + 1
        info = inner.RuntimeSchemaInfo(begin, needs_pytree=True)
        propagator.register_op_strategy(operator, rule.strategy, info)
    admit_class(tensor.DTensor)
