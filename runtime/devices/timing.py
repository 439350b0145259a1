"""Time of launches on a GPU, by the driver's events."""

from __future__ import annotations

import math
from collections.abc import Callable

from attn_mlir.runtime.devices import driver

WARM_UP = 3  # launches before those that count


def seconds_per_launch(launch: Callable[[], object], *, index: int, seconds: float) -> float:
    """The mean time of launches that follow one another on the default stream.

    Args:
      launch: queues one.
      index: number of the GPU.
      seconds: that all of them last about, so that clocks settle.

    Raises:
      LaunchError: a launch failed.
    """
    for _ in range(WARM_UP):
        launch()
    once = _elapsed(launch, 1, index)
    return _elapsed(launch, count := max(1, math.ceil(seconds / once)), index) / count


def _elapsed(launch: Callable[[], object], count: int, index: int) -> float:
    """Seconds from before the first to behind the last of so many launches."""
    with driver.Current(index):
        stream = driver.api().CUstream(0)
        begin, end = (driver.call("cuEventCreate", 0) for _ in range(2))
        try:
            driver.call("cuEventRecord", begin, stream)
            for _ in range(count):
                launch()
            driver.call("cuEventRecord", end, stream)
            driver.call("cuEventSynchronize", end, what="wait for the launches")
            return float(driver.call("cuEventElapsedTime", begin, end)) * 1e-3
        finally:
            for event in (begin, end):
                driver.call("cuEventDestroy", event)
