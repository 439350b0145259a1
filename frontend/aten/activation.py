"""Activates the operators of this package, and restores PyTorch's."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attn_mlir.aten.operators import override
from attn_mlir.errors import SpecError, shown
from attn_mlir.fallback import SDPA, wants_sdpa

host: Any = importlib.import_module("torch.nn.attention")

IMPLEMENTATIONS: Mapping[tuple[str, str | None], str] = {
    ("cuda", None): "attn_mlir",
    ("cuda", SDPA): "attn_mlir_or_sdpa",
    ("cpu", None): "attn_mlir_emulator",
    ("cpu", SDPA): "attn_mlir_emulator_or_sdpa",
}
"""Names for `torch.nn.attention.activate_flash_attention_impl`, by device and fallback."""


@dataclass(frozen=True)
class Activation:
    """The result of `activate`: as a context manager it restores what was active before.

    Attributes:
      previous: name of the implementation that was active; None for PyTorch's own.
    """

    previous: str | None

    def __enter__(self) -> Activation:
        return self

    def __exit__(self, *_: object) -> None:
        if self.previous is None:
            host.restore_flash_attention_impl(_raise_warn=False)
        else:
            host.activate_flash_attention_impl(self.previous)


def activate(device: str = "cuda", *, fallback: str | None = None) -> Activation:
    """Makes PyTorch's flash attention that of this package, in the whole process.

    PyTorch chooses a backend for each call of SDPA as before. A call for which it chooses another
    one than flash attention, such as one with a mask on a GPU, stays with PyTorch.

    Args:
      device: `cuda`, or `cpu` for tensors on the host, which the emulator computes.
      fallback: None: a call that no kernel takes raises. "sdpa": PyTorch's own kernel takes it,
        where the device has one, and the log says so once for each reason.

    Returns:
      A context manager that restores what was active before. Without `with` it stays active until
      `deactivate`.

    Raises:
      SpecError: another device or fallback.
    """
    wants_sdpa(fallback)
    if device not in ("cuda", "cpu"):
        raise SpecError(f"device must be cuda or cpu, got {shown(device, 40)}")
    previous = host.current_flash_attention_impl()
    host.activate_flash_attention_impl(IMPLEMENTATIONS[device, fallback])
    return Activation(previous)


def deactivate() -> None:
    """Restores PyTorch's own flash attention; nothing changes where another package's is active."""
    if host.current_flash_attention_impl() in IMPLEMENTATIONS.values():
        host.restore_flash_attention_impl()


for (_device, _fallback), _name in IMPLEMENTATIONS.items():
    host.register_flash_attention_impl(
        _name, register_fn=functools.partial(override, _device, falls_back=_fallback == SDPA)
    )
