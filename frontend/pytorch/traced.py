"""Modifiers as arguments of operators: a program as text, and the tensors that it reads."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any, NamedTuple

from attn_mlir.errors import SpecError
from attn_mlir.pytorch.readable import as_tensor
from attn_mlir.runtime.call.torch_tensors import NO_GRADIENT
from attn_mlir.trace import MaskMod, Recorded, ScoreMod, trace_sources

torch: Any = importlib.import_module("torch")


class Modifiers(NamedTuple):
    """A traced score modifier and predicate.

    Attributes:
      text: `Program.canonical`, or "" where there is nothing to do.
      tensors: what the program reads, in its order; their gradients are those of what was captured.
      recorded: both, as a `score_mod`; None where there is nothing to do.
    """

    text: str
    tensors: list[Any]
    recorded: Recorded | None


def traced(
    score_mod: ScoreMod | Recorded | None, mask_mod: MaskMod | None, q: Any, *, is_trained: bool
) -> Modifiers:
    """Traces modifiers.

    Args:
      q: the query of the call; if it is a DTensor, captured tensors become replicated DTensors.
      is_trained: whether an operand of the call requires a gradient; captured tensors may require
        one only then.

    Raises:
      SpecError: as `trace`.
    """
    with torch.no_grad() if is_trained else contextlib.nullcontext():
        program, sources = trace_sources(score_mod, mask_mod)
    if program is None:
        return Modifiers("", [], None)
    tensors = [_beside(q, as_tensor(sources[x.name], x.rank)) for x in program.tensors]
    arrays = {x.name: tensor for x, tensor in zip(program.tensors, tensors, strict=True)}
    if not is_trained and torch.is_grad_enabled():
        for name, tensor in arrays.items():
            if tensor.requires_grad:
                raise SpecError(NO_GRADIENT.format(name))
    return Modifiers(program.canonical(), tensors, Recorded(program, arrays))


def _beside(q: Any, read: Any) -> Any:
    """A tensor that a modifier reads, as an operator takes it: next to a DTensor a replicated one.

    Raises:
      SpecError: q is a DTensor, and the tensor requires a gradient.
    """
    if not hasattr(q, "device_mesh"):
        return read
    if read.requires_grad and torch.is_grad_enabled():
        raise SpecError(
            "a captured tensor requires a gradient, which it has none of beside a DTensor: pass it "
            "detached"
        )
    if isinstance(read, type(q)):
        return read
    dtensor: Any = importlib.import_module("torch.distributed.tensor").DTensor
    return dtensor.from_local(read, q.device_mesh, run_check=False)
