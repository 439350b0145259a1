"""Attention for SGLang: a backend that is chosen by name.

    python -m sglang.launch_server --model-path MODEL --attention-backend attn_mlir

SGLang loads the entry point `attn_mlir` of its general plug-ins. Pages have any size, of which 1 is
SGLang's default. `batches` has functions of tensors, which need no SGLang; `backend` has the class.
"""

from __future__ import annotations

import importlib
from typing import Any, cast

from attn_mlir.errors import SpecError, shown
from attn_mlir.versions import check_version, register_or_warn

LEAST = (0, 5, 23)  # whose classes were read
BELOW = (0, 6)
NAME = "attn_mlir"
_REGISTRY = "sglang.srt.layers.attention.attention_registry"
_CHOICES = "sglang.srt.arg_groups.choices"

__all__ = ["BELOW", "LEAST", "NAME", "plug_in", "register"]


def register(name: str = NAME) -> None:
    """Makes `--attention-backend name` a choice of SGLang; it may be called again.

    Raises:
      ImportError: SGLang is missing, or of another version.
      SpecError: a name that is no identifier.
    """
    if not isinstance(cast(object, name), str) or not name.isidentifier():
        raise SpecError(f"name must be an identifier, got {shown(name, 40)}")
    sglang: Any = importlib.import_module("sglang")
    check_version("sglang", sglang.__version__, LEAST, BELOW)
    choices: Any = importlib.import_module(_CHOICES)
    registry: Any = importlib.import_module(_REGISTRY)
    registry.register_attention_backend(name)(_made)
    if name not in choices.ATTENTION_BACKEND_CHOICES:
        choices.add_attention_backend_choices([name])


def _made(runner: Any) -> Any:
    """The backend of a model runner; its class is imported where it is asked for."""
    backend: Any = importlib.import_module("attn_mlir.sglang.backend")
    return backend.AttnMlirBackend(runner)


def plug_in() -> None:
    """The entry point of `sglang.srt.plugins`: `register()`, or a warning in the log."""
    register_or_warn(register, NAME)
