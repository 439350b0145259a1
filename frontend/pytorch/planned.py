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

ViewOf = Callable[[Any, str], Any]  # the view of a tensor, given the tensor and its name


def breaks(options: Mapping[str, Any], *names: str) -> bool:
    """Whether a call breaks the graph of PyTorch's compiler.

    Args:
      options: its options by name.
      names: those that no graph can hold, beside `BREAKS`.

    Raises:
      SpecError: one is given under another tracer, which has no breaks.
    """
    breaking = [name for name in (*names, *BREAKS) if options.get(name) is not None]
    if breaking and not torch.compiler.is_dynamo_compiling():
        raise SpecError(
            f"{breaking[0]} cannot be recorded by torch.jit.trace, make_fx and torch.export, nor "
            "transformed by torch.func: leave it out"
        )
    return bool(breaking)


def with_views(view_of: ViewOf, values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are not None, by name, with views in the place of tensors."""
    arguments = {name: value for name, value in values.items() if value is not None}
    return {
        name: view_of(value, name) if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }
