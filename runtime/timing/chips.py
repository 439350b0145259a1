"""Rates and latencies of a chip, in clocks of a multiprocessor, with bounds.

Each constant has a value and the range that its sources leave open. `Chip.at` picks one end of all
ranges, so that a replay can be bounded. docs/timing.md lists the sources and the measurements.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from attn_mlir.errors import SpecError, TargetError

Corner = Literal["low", "nominal", "high"]  # fastest, most likely, slowest
AT_LEAST_1 = frozenset(  # rates, room
    "copy_bytes store_bytes shared_bytes tensor_depth tmem_read_bytes tmem_write_bytes".split()
)


@dataclass(frozen=True, slots=True)
class Constant:
    """A value with its range, in clocks unless the name says otherwise.

    Attributes:
      low, nominal, high: from the fastest to the slowest chip that the source allows.
      source: where it comes from: "assembler" (stall counts of ptxas), "measured"
        (bench/calibrate.py), "published", or "assumed".
    """

    low: float
    nominal: float
    high: float
    source: str


@dataclass(frozen=True, slots=True)
class Chip:
    """One chip.

    Attributes:
      sms: multiprocessors that kernels use. clock_mhz: under attention load.
      smem_bytes, registers, warps: of a multiprocessor, which limit CTAs on it.
      constants: by name.
    """

    name: str
    target: str
    sms: int
    clock_mhz: int
    smem_bytes: int
    registers: int
    warps: int
    constants: Mapping[str, Constant]

    def at(self, corner: Corner, overrides: Mapping[str, float] = MappingProxyType({})) -> "Values":
        """The constants at one end of their ranges.

        Raises:
          TargetError: an override names no constant.
          SpecError: its value is not finite, is negative, or is below 1 for one of `AT_LEAST_1`.
        """
        values = {name: getattr(one, corner) for name, one in self.constants.items()}
        for name, value in overrides.items():
            if name not in values:
                raise TargetError(
                    f"{self.name} has no constant {name}: {', '.join(sorted(values))}"
                )
            least = 1 if name in AT_LEAST_1 else 0
            if not least <= value < math.inf:
                raise SpecError(f"{name} must be a finite number of at least {least}, got {value}")
            values[name] = value
        return Values(values)


class Values:
    """Constants of a chip as attributes-by-name: `values["mufu_latency"]`."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, float]):
        self._values = dict(values)

    def __getitem__(self, name: str) -> float:
        return self._values[name]


_HOPPER: dict[str, Constant] = {
    # Scoreboards: clocks from issue until a waiting instruction may issue.
    "mufu_latency": Constant(17, 17, 17, "measured"),
    "convert_latency": Constant(17, 17, 17, "measured"),
    "shuffle_latency": Constant(24, 24, 24, "measured"),
    "lds_latency": Constant(23, 23, 29, "measured"),
    "ldsm_latency": Constant(23, 29, 33, "assumed"),
    "sts_read": Constant(8, 12, 20, "assumed"),
    "special_latency": Constant(20, 24, 50, "assumed"),
    "ldc_latency": Constant(20, 30, 60, "assumed"),
    "global_latency": Constant(34, 312, 700, "measured"),
    "atomic_latency": Constant(400, 700, 1200, "assumed"),
    "vote_latency": Constant(10, 13, 20, "assembler"),
    "redux_latency": Constant(20, 30, 44, "published"),
    # Issue.
    "collector_clocks": Constant(2, 1, 1, "measured"),
    # Barriers.
    "arrive_latency": Constant(5, 12, 27, "published"),
    "try_wait_latency": Constant(20, 24, 28, "published"),
    "arrive_interval": Constant(3.6, 3.6, 3.6, "measured"),
    "wake_latency": Constant(25, 33, 40, "measured"),
    "bar_latency": Constant(12, 12, 12, "measured"),
    "bar_per_warp": Constant(2, 2, 2, "measured"),
    "cluster_latency": Constant(150, 190, 380, "published"),
    "fence_latency": Constant(14, 14, 180, "measured"),
    "setmaxnreg_latency": Constant(10, 30, 200, "assumed"),
    # Tensor core.
    "group_latency": Constant(34, 38, 42, "measured"),
    "tensor_fill": Constant(14, 18, 22, "measured"),
    "tensor_drain": Constant(20, 24, 28, "measured"),
    "tensor_depth": Constant(7, 7, 7, "measured"),
    "tensor_hold": Constant(2, 3, 3.5, "measured"),
    # Copies and memory: latencies, and bytes per clock and multiprocessor.
    "copy_issue": Constant(48, 64, 74, "measured"),
    "copy_latency": Constant(250, 270, 500, "measured"),
    "copy_bytes": Constant(64, 40, 33, "measured"),
    "store_bytes": Constant(128, 64, 32, "assumed"),
    "store_latency": Constant(200, 400, 800, "assumed"),
    "shared_bytes": Constant(128, 128, 128, "published"),
    # Grid.
    "launch_latency": Constant(1500, 3000, 5000, "published"),
    "cta_latency": Constant(300, 800, 1500, "assumed"),
}

_BLACKWELL: dict[str, Constant] = {
    **{name: dataclasses.replace(one, source="as on the H200") for name, one in _HOPPER.items()},
    "mufu_latency": Constant(14, 14, 18, "published"),
    "global_latency": Constant(47, 310, 790, "published"),
    "bar_latency": Constant(22, 22, 22, "published"),
    "cluster_latency": Constant(370, 370, 380, "published"),
    "fence_latency": Constant(14, 36, 180, "published"),
    "arrive_latency": Constant(8, 12, 27, "published"),
    "wake_latency": Constant(25, 33, 88, "assumed"),
    # Issue to a waiter behind a commit: 104 + N/2; 136 with A in shared memory; a pair 34 more.
    "mma_fill": Constant(20, 24, 40, "published"),
    "mma_fetch": Constant(32, 32, 32, "published"),
    "mma_pair": Constant(34, 34, 34, "published"),
    "commit_latency": Constant(20, 47, 60, "published"),
    # Tensor memory: bytes per clock and partition; latency beyond the transfer.
    "tmem_read_bytes": Constant(57, 53, 48, "published"),
    "tmem_write_bytes": Constant(115, 100, 85, "published"),
    "tmem_latency": Constant(20, 45, 130, "assumed"),
    "copy_latency": Constant(300, 480, 830, "assumed"),
    "copy_bytes": Constant(128, 71, 60, "published"),
}

H200 = Chip("H200", "sm_90a", 132, 1755, 227 << 10, 65536, 64, _HOPPER)
B200 = Chip("B200", "sm_100a", 148, 1850, 227 << 10, 65536, 64, _BLACKWELL)
CHIPS = {"sm_90a": H200, "sm_100a": B200}


def chip_for(target: str) -> Chip:
    """The chip that stands for a target.

    Raises:
      TargetError: there is no model of it.
    """
    chip = CHIPS.get(target)
    if chip is None:
        raise TargetError(
            f"there is no model of time for {target}: there is one for {', '.join(CHIPS)}"
        )
    return chip
