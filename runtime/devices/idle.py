"""A device that launches nothing: calls are checked and kernels compiled, results stay unwritten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attn_mlir.runtime.binding import Bound
from attn_mlir.runtime.bundle import Bundle
from attn_mlir.runtime.devices.base import Launch


@dataclass(frozen=True)
class IdleDevice:
    """Takes every launch and does nothing.

    Attributes:
      target: the chip that it passes for; None where any will do.
    """

    name: ClassVar[str] = "idle"
    target: str | None = None

    def refusal(self, bundle: Bundle) -> str | None:
        """None: it takes every bundle."""
        return None

    def launch(self, bundle: Bundle, bound: Bound, stream: object | None) -> Launch:
        """What would have been launched; outputs are not written."""
        return Launch(self.name, bound.grid)
