"""Output that every benchmark prints the same way: medians with quantiles, and the conditions they were measured under."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench"  # what benchmarks leave behind; ignored by git


@dataclass(frozen=True)
class Spread:
    """Median and the 20 % and 80 % quantiles of repeated measurements, in the unit that was measured."""

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Quantiles by linear interpolation between the sorted values; one value is its own quantiles."""
        if not values:
            raise ValueError("a spread needs at least one value")
        ordered = sorted(values)

        def quantile(fraction: float) -> float:
            position = fraction * (len(ordered) - 1)
            below = int(position)
            above = min(below + 1, len(ordered) - 1)
            return ordered[below] + (ordered[above] - ordered[below]) * (position - below)

        return Spread(statistics.median(ordered), quantile(0.2), quantile(0.8), len(ordered))

    def text(self, unit: str = "s", digits: int = 3, factor: float = 1.0) -> str:
        """`median unit (low .. high)`, without the unit when it is empty; every number multiplied by `factor`."""
        median, low, high = (f"{v * factor:.{digits}f}" for v in (self.median, self.low, self.high))
        return f"{median}{' ' if unit else ''}{unit} ({low} .. {high})"

    def milliseconds(self) -> str:
        """`median (low .. high)` in milliseconds, of a spread in seconds; more digits below 1 ms."""
        return self.text("", 1 if self.median >= 1e-3 else 3, 1e3)

    def record(self) -> dict[str, float]:
        """For JSON."""
        return {"median": self.median, "q20": self.low, "q80": self.high, "count": self.count}

    @staticmethod
    def recorded(values: Mapping[str, float]) -> Spread:
        """The inverse of `record`."""
        return Spread(values["median"], values["q20"], values["q80"], int(values["count"]))


def package_version(name: str) -> str:
    """The installed version, or `absent`."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def cpu_name() -> str:
    """The processor's marketing name where the system tells it, else its architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    """Short hash of the checkout, `+` when tracked files outside docs differ from it; `unknown` outside git."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True
        )
        dirty = subprocess.run(
            ["git", "diff", "--quiet", "HEAD", "--", ".", ":!docs"], cwd=ROOT, capture_output=True
        )
    except OSError:
        return "unknown"
    if head.returncode != 0:
        return "unknown"
    return head.stdout.strip() + ("+" if dirty.returncode else "")


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def conditions() -> dict[str, str]:
    """The conditions that a reader needs to judge a number: machine, cores, load, Python, package versions, commit."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return {
        "cpu": cpu_name(),
        "cores": str(usable_cores()),
        "load before": load,
        "python": platform.python_version(),
        "commit": commit(),
        "numba-cuda-mlir": package_version("numba-cuda-mlir"),
        "nvidia-cuda-nvcc": package_version("nvidia-cuda-nvcc"),
    }
