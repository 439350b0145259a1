"""A device that checks calls and compiles kernels, and launches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.runtime.call.binding import Bound
from attn_mlir.runtime.call.tensormap import encode
from attn_mlir.runtime.devices.base import Launch
from attn_mlir.runtime.devices.launchplan import LaunchPlan, can_be_planned
from attn_mlir.runtime.devices.parameters import PackedParameters
from attn_mlir.runtime.file.bundle import Bundle


@dataclass(frozen=True)
class IdleDevice:
    """Accepts every launch and does nothing.

    Attributes:
      target: the chip that calls compile for; None for any.
    """

    target: str | None = None

    @property
    def name(self) -> str:
        """`idle`."""
        return "idle"

    def refusal(self, bundle: Bundle) -> str | None:
        """None, as it accepts every bundle."""
        return None

    def launch(self, bundle: Bundle, bound: Bound, stream: object | None) -> Launch:
        """Returns the launch that would have been made; outputs are not written."""
        return Launch(self.name, bound.grid)

    def plan_launch(
        self, bundle: Bundle, bound: Bound, names: Sequence[str]
    ) -> LaunchPlan[Any] | None:
        """A plan that writes a launch's parameters and launches nothing; see `PlansLaunches`."""
        if not can_be_planned(bound):
            return None
        launched = Launch(self.name, bound.grid)
        return LaunchPlan(
            bound, names, encode, pack=PackedParameters, start=_launch_nothing, launched=launched
        )


def _launch_nothing(packed: PackedParameters, stream: object | None) -> None:
    """Stands in for the driver."""
