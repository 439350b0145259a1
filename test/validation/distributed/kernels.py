"""The kernels that `bench/distributed.py` asks for, found by its own run on an idle device."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from attn_mlir.bench import distributed as bench
from attn_mlir.compiling.compiler import RequestedKernel, recording
from attn_mlir.compiling.prebuilt import file_name
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import launching_on

torch: Any = importlib.import_module("torch")
dist: Any = importlib.import_module("torch.distributed")


class OnCpu(bench.Ranks):
    """A rank whose calls are made once and not timed."""

    def __init__(self) -> None:
        self.torch, self.dist, self.device = torch, dist, torch.device("cpu")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def largest(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def milliseconds(self, call: Callable[[], Any], rounds: int) -> float:
        del rounds
        call()
        return 0.0

    def host_milliseconds(self, call: Callable[[], Any]) -> float:
        return self.milliseconds(call, 1)

    def graph(self, call: Callable[[], Any], times: int = 1) -> Callable[[], Any]:
        del times
        return call


def requested(target: str, length: str) -> list[str]:
    """The names of bundle files that all parts of the benchmark ask for.

    Args:
      length: of the cells that are timed.
    """
    names: set[str] = set()

    def note(kernel: RequestedKernel) -> None:
        names.add(file_name(kernel.kernel, kernel.request, kernel.target))

    ranks, cells = OnCpu(), bench.cells_of([int(length)])
    with recording(note), launching_on(IdleDevice(target)):
        bench.check(ranks)  # nothing is computed, so its verdict means nothing
        for part in (bench.forward(ranks, cells), bench.backward(ranks, cells)):
            list(part)
        list(bench.decode(ranks))
    return sorted(names)
