"""Attention for models of the `transformers` package: `attn_implementation="attn_mlir"`.

    attn_mlir.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attn_mlir")

The truth is the package's own `eager` attention: which keys a query sees is what the model's mask
function says, with caches that grow and caches that are allocated at once. Padding, windows,
chunks, packed sequences and spans that see each other are served; an option that would be left out
is refused. Autograd gets gradients where kernels compute them. CUDA tensors run on their
GPU, CPU tensors on the emulator.
"""

from __future__ import annotations

import importlib
from typing import Any, cast

from attn_mlir import versions
from attn_mlir.errors import SpecError, shown
from attn_mlir.fallback import wants_sdpa

LEAST = (5, 23)  # the first version whose mask functions were looked at
BELOW = (6, 0)  # whose mask functions nobody has looked at
transformers: Any = importlib.import_module("transformers")


def check_version(version: str) -> None:
    """Refuses a version of the package whose masks may be made of other functions.

    Raises:
      ImportError: says which is needed.
    """
    versions.check_version("transformers", version, LEAST, BELOW)


check_version(transformers.__version__)
from attn_mlir.transformers.attention import attention_forward  # noqa: E402
from attn_mlir.transformers.masks import attention_mask  # noqa: E402
from attn_mlir.transformers.sdpa import attention_or_sdpa  # noqa: E402

NAME = "attn_mlir"

__all__ = [
    "BELOW",
    "LEAST",
    "NAME",
    "attention_forward",
    "attention_mask",
    "attention_or_sdpa",
    "check_version",
    "register",
]


def register(name: str = NAME, *, fallback: str | None = None) -> None:
    """Makes `attn_implementation=name` a choice of every model that asks the package for attention.

    Args:
      name: without "flash" in it, which the package takes for FlashAttention.
      fallback: None: a call that no kernel takes raises. "sdpa": the package's `sdpa` computes it,
        and the log says so once for each kind of layer and reason; not inside graphs.

    Raises:
      SpecError: another name or fallback.
      ImportError: of the package's version, when this module is imported.
    """
    forward = attention_or_sdpa if wants_sdpa(fallback) else attention_forward
    requested = cast("object", name)
    if not isinstance(requested, str) or not requested.isidentifier() or "flash" in requested:
        raise SpecError(
            f'name must be an identifier without "flash", which transformers takes for '
            f"FlashAttention, got {shown(name)}"
        )
    transformers.AttentionInterface.register(name, forward)
    transformers.AttentionMaskInterface.register(name, attention_mask)
