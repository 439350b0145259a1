"""Arguments that break graphs of PyTorch, and the views of tensors that a plan gets."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from attn_mlir.compiling.dtypes import OUT_DTYPES
from attn_mlir.element_types import ELEMENT_TYPES
from attn_mlir.errors import SpecError

torch: Any = importlib.import_module("torch")

BREAKS = ("out", "device", "stream")  # the graph, where one is given
OUTPUT_DTYPES = {name: getattr(torch, ELEMENT_TYPES[name].torch) for name in OUT_DTYPES}

Seeing = Callable[[Any, str], Any]  # the view of a tensor, given the tensor and its name


def breaks(given: Mapping[str, Any], *names: str) -> bool:
    """Whether a call breaks the graph of PyTorch's compiler.

    Args:
      given: its options by name.
      names: those that no graph can hold, beside `BREAKS`.

    Raises:
      SpecError: one is given under another tracer, which has no breaks.
    """
    found = [name for name in (*names, *BREAKS) if given.get(name) is not None]
    if found and not torch.compiler.is_dynamo_compiling():
        raise SpecError(
            f"{found[0]} cannot be recorded by torch.jit.trace, make_fx and torch.export, nor "
            "transformed by torch.func: leave it out"
        )
    return bool(found)


def seen_by(seen: Seeing, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are not None, by name, with views in the place of tensors."""
    found = {name: value for name, value in given.items() if value is not None}
    return {
        name: seen(value, name) if isinstance(value, torch.Tensor) else value
        for name, value in found.items()
    }
