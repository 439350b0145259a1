"""Attention for vLLM: backends that are chosen by name.

    vllm serve MODEL --attention-backend ATTN_MLIR

vLLM loads the entry point `attn_mlir` of its general plug-ins in each of its processes, which
registers `ATTN_MLIR` for attention and `ATTN_MLIR_MLA` for latent attention, whose prefill is
`ATTN_MLIR` among backends of MLA prefill. `caches`, `attention` and `latent` are functions of
tensors, which need no vLLM; `backend` and `latent_backend` have vLLM's classes over them.
"""

from __future__ import annotations

import importlib
from typing import Any, cast

from attn_mlir.errors import SpecError, shown
from attn_mlir.versions import check_version, register_or_warn

LEAST = (0, 33)  # whose classes were read
BELOW = (0, 34)  # vLLM promises no stability of its classes
NAME, LATENT_NAME = "ATTN_MLIR", "ATTN_MLIR_MLA"
_REGISTRY = "vllm.v1.attention.backends.registry"
_PREFILL_REGISTRY = "vllm.v1.attention.backends.mla.prefill.registry"
_BACKEND = "attn_mlir.vllm.backend.AttnMlirBackend"
_LATENT = "attn_mlir.vllm.latent_backend"

__all__ = ["BELOW", "LATENT_NAME", "LEAST", "NAME", "plug_in", "register"]


def register(name: str = NAME, latent_name: str = LATENT_NAME) -> None:
    """Makes `--attention-backend NAME` a choice of vLLM; it may be called again.

    Args:
      name, latent_name: of attention and of latent attention: new ones, or members of
        `AttentionBackendEnum` whose place they take, such as CUSTOM.

    Raises:
      ImportError: vLLM is missing, or of another version.
      SpecError: a name that is no identifier of capitals, as vLLM reads names.
    """
    for one in (name, latent_name):
        is_text = isinstance(cast(object, one), str)
        if not is_text or not one.isidentifier() or one != one.upper():
            raise SpecError(f"a name must be an identifier in capitals, got {shown(one, 40)}")
    if name == latent_name:
        raise SpecError(f"attention and latent attention need names of their own, got {name} twice")
    vllm: Any = importlib.import_module("vllm")
    check_version("vllm", vllm.__version__, LEAST, BELOW)
    registry: Any = importlib.import_module(_REGISTRY)
    prefill: Any = importlib.import_module(_PREFILL_REGISTRY)
    backends, of_prefill = registry.AttentionBackendEnum, prefill.MLAPrefillBackendEnum
    _register(registry.register_backend, backends, name, _BACKEND)
    _register(registry.register_backend, backends, latent_name, f"{_LATENT}.AttnMlirMLABackend")
    path = f"{_LATENT}.AttnMlirPrefillBackend"
    _register(prefill.register_mla_prefill_backend, of_prefill, name, path)


def _register(register_backend: Any, names: Any, name: str, path: str) -> None:
    """A member that is there is overridden, another name becomes a member."""
    register_backend(names.__members__.get(name, name), path)


def plug_in() -> None:
    """The entry point of `vllm.general_plugins`: `register()`, or a warning in the log."""
    register_or_warn(register, NAME)
