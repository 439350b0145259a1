"""Times of calls on a GPU without the host's: calls are recorded in CUDA graphs, which are replayed in turns."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attn_mlir.bench.measuring.stats import Spread

WARM_UP = 3  # replays of each graph before those that count


def recorded(call: Callable[..., object], arguments: Sequence[Sequence[Any]]) -> Any:
    """A graph of one call for each of `arguments`; the first one is made before, as some set up memory."""
    torch: Any = importlib.import_module("torch")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call(*arguments[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for given in arguments:
            call(*given)
    return graph


def replayed(
    graphs: Mapping[str, Any], calls: int, rounds: int, *, seconds: float = 0.0
) -> dict[str, Spread]:
    """Seconds per call, for each graph.

    Args:
      graphs: by name, replayed in turns.
      calls: how many calls each graph holds.
      rounds: readings of each.
      seconds: that a reading lasts at least; one replay by default.
    """
    torch: Any = importlib.import_module("torch")
    found: dict[str, list[Any]] = {name: [] for name in graphs}
    times = dict.fromkeys(graphs, 1)
    if seconds:
        once = replayed(graphs, 1, 1)
        times = {name: math.ceil(seconds / once[name].median) for name in graphs}
    warm_up = 0 if seconds else WARM_UP
    for number in range(warm_up + rounds):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(times[name]):
                graph.replay()
            end.record()
            if number >= warm_up:
                found[name].append((begin, end))
    torch.cuda.synchronize()
    return {
        name: Spread.of(
            [begin.elapsed_time(end) * 1e-3 / (calls * times[name]) for begin, end in pairs]
        )
        for name, pairs in found.items()
    }
