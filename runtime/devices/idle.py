"""A device that launches nothing: calls are checked and kernels compiled, results stay unwritten."""

from __future__ import annotations

from attn_mlir.runtime.binding import Bound
from attn_mlir.runtime.bundle import Bundle
from attn_mlir.runtime.devices.base import Launch


class IdleDevice:
    """Takes every launch and does nothing."""

    name = "idle"

    def refusal(self, bundle: Bundle) -> str | None:
        """None: it takes every bundle."""
        return None

    def launch(self, bundle: Bundle, bound: Bound, stream: object | None) -> Launch:
        """What would have been launched; outputs are not written."""
        return Launch(self.name, bound.grid)
