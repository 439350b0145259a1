"""A device that launches nothing: calls are checked and kernels compiled, results stay unwritten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.runtime.binding import Bound
from attn_mlir.runtime.bundle import Bundle
from attn_mlir.runtime.devices.base import Launch
from attn_mlir.runtime.devices.launchplan import LaunchPlan, can_be_planned
from attn_mlir.runtime.devices.parameters import PackedParameters
from attn_mlir.runtime.tensormap import encode


@dataclass(frozen=True)
class IdleDevice:
    """Takes every launch and does nothing.

    Attributes:
      target: the chip that it passes for; None where any will do.
    """

    target: str | None = None

    @property
    def name(self) -> str:
        """`idle`."""
        return "idle"

    def refusal(self, bundle: Bundle) -> str | None:
        """None: it takes every bundle."""
        return None

    def launch(self, bundle: Bundle, bound: Bound, stream: object | None) -> Launch:
        """What would have been launched; outputs are not written."""
        return Launch(self.name, bound.grid)

    def plan_launch(
        self, bundle: Bundle, bound: Bound, names: Sequence[str]
    ) -> LaunchPlan[Any] | None:
        """A plan that writes the parameters of a launch, and launches nothing; see `PlansLaunches`."""
        if not can_be_planned(bound):
            return None
        launched = Launch(self.name, bound.grid)
        return LaunchPlan(
            bound, names, encode, pack=PackedParameters, start=_launch_nothing, launched=launched
        )


def _launch_nothing(packed: PackedParameters, stream: object | None) -> None:
    """In the place of the driver."""
