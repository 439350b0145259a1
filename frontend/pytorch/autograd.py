"""Gradients of attention in PyTorch's autograd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attn_mlir.api.attention import attention
from attn_mlir.api.attention_backward import OF_FORWARD, WANTED, attention_backward
from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.dialect.attn.block import BLOCK_LISTS
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.masks.text import parse_mask
from attn_mlir.pytorch.backward import attention_backward_in_graph
from attn_mlir.pytorch.differentiable_calls import DifferentiableCall
from attn_mlir.pytorch.listed_blocks import EXTENTS
from attn_mlir.pytorch.operators import AttentionArguments, attention_op
from attn_mlir.trace import Recorded

OPERANDS, SINKS = WANTED[:3], WANTED[3:]


DIFFERENTIABLE = DifferentiableCall(
    attention,
    attention_backward,
    attention_backward_in_graph,
    OPERANDS,
    OF_FORWARD,
    in_caches=dict.fromkeys(OPERANDS, "keys and values"),
    options=SINKS,
    checks_layouts=True,
)
trained = outside_graphs(DIFFERENTIABLE.apply)  # `attention` of operands that require a gradient


def check_attention(
    operands: Mapping[str, Any], mask: str, scale: float, score_mod: Recorded | None = None
) -> None:
    """`check_gradients` for a call of `attn_mlir::attention` without lists of blocks."""
    options = {"mask": parse_mask(mask), "scale": scale, "score_mod": score_mod}
    DIFFERENTIABLE.check_gradients(operands, options)


def _of_attention(*inputs: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    """The operands, and the options by name, of a call of `attn_mlir::attention`."""
    call = AttentionArguments(*inputs)
    options: dict[str, Any] = {"mask": parse_mask(call.mask), "scale": call.scale}
    options["return_lse"] = call.return_lse
    read = [*call.captured]
    if call.block:
        lists, read = read[: len(BLOCK_LISTS)], read[len(BLOCK_LISTS) :]
        options |= {**dict(zip(BLOCK_LISTS, lists, strict=True)), EXTENTS: [*call.block]}
    if call.modifier:
        program = Program.from_json(call.modifier)
        names = (tensor.name for tensor in program.tensors)
        options["score_mod"] = Recorded(program, dict(zip(names, read, strict=True)))
    return call[: len(OPERANDS)], options


DIFFERENTIABLE.register(attention_op, _of_attention, AttentionArguments._fields)
