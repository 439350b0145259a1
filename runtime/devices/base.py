"""The interface of devices: whether they can run a bundle, and launching one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from attn_mlir.runtime.call.binding import Bound
from attn_mlir.runtime.file.bundle import Bundle

TARGETS = ("sm_90a", "sm_100a")  # chips that kernels are compiled for, on a GPU the last that fits


@dataclass(frozen=True)
class Launch:
    """The result of a call.

    Attributes:
      device: where it ran, such as `cuda:0` or `emulator`.
      grid: CTAs per axis; an axis of 0 means that nothing was launched.
      warp_instructions: number executed on the emulator; None on other devices.
      seconds: duration of the emulation; None on a GPU, where a launch returns before the kernel
        runs.
    """

    device: str
    grid: tuple[int, int, int]
    warp_instructions: int | None = None
    seconds: float | None = None


class Device(Protocol):
    """A machine that launches bundles."""

    @property
    def name(self) -> str:
        """Name for display: `cuda:0`, `emulator`."""
        ...

    def refusal(self, bundle: Bundle) -> str | None:
        """Why this device cannot run the bundle; None if it can."""

    def launch(self, bundle: Bundle, bound: Bound, stream: object | None) -> Launch:
        """Starts the kernel on checked arguments, without waiting if the device allows that.

        Raises:
          TargetError: the device cannot run the bundle.
          SpecError: the device cannot access the memory of the tensors.
          LaunchError: the launch failed.
        """
        ...


def fitting(bundles: Sequence[Bundle], device: Device) -> Bundle | str:
    """The bundle of one kernel that a device runs; in words why not, if it can run none.

    It is the one for the target that the device names, as an emulator may, and otherwise the first
    that the device does not refuse.
    """
    target = getattr(device, "target", None)
    refusals: list[str] = []
    for bundle in sorted(bundles, key=lambda bundle: bundle.target != target):
        reason = device.refusal(bundle)
        if reason is None:
            return bundle
        refusals.append(reason)
    if len(causes := list(dict.fromkeys(refusals))) == 1:
        return causes[0]
    targets = " and ".join(bundle.target for bundle in bundles)
    reasons = "; ".join(causes)
    return (
        f"{bundles[0].entry} has code for {targets}, and {device.name} runs none of it: {reasons}"
    )
