"""What every device can do: say whether it runs a bundle, and launch one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from attn_mlir.runtime.binding import Bound
from attn_mlir.runtime.bundle import Bundle


@dataclass(frozen=True)
class Launch:
    """What became of a call.

    Attributes:
      device: where it ran, such as `cuda:0` or `emulator`.
      grid: CTAs per axis; an axis of 0 means that nothing was launched.
      warp_instructions: executed, on the emulator; None elsewhere.
      seconds: of the emulation; None on a GPU, where a launch returns before the kernel has run.
    """

    device: str
    grid: tuple[int, int, int]
    warp_instructions: int | None = None
    seconds: float | None = None


class Device(Protocol):
    """A machine that launches bundles."""

    @property
    def name(self) -> str:
        """For people: `cuda:0`, `emulator`."""
        ...

    def refusal(self, bundle: Bundle) -> str | None:
        """Why this device cannot run the bundle, or None when it can."""
        ...

    def launch(self, bundle: Bundle, bound: Bound, stream: object | None) -> Launch:
        """Start the kernel on checked arguments; never waits unless the device cannot do otherwise.

        Raises:
          TargetError: the device cannot run the bundle.
          SpecError: the tensors are not where this device can reach them.
          LaunchError: the launch failed.
        """
        ...
