"""A replay as Chrome trace JSON in clocks, which ui.perfetto.dev opens and `attn-mlir trace` draws.

A CTA is a process; its warps and engines are threads. One clock is drawn as a nanosecond.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attn_mlir.files import write_file

from ..emulator.trace.timeline import COPY_IN, COPY_OUT, TENSOR
from .engines import Span
from .warps import Replayed, WarpTimes

CLOCKS_PER_MICROSECOND = 1000


def chrome_trace(
    replayed: Replayed, *, kernel: str, target: str, names: Mapping[int, str]
) -> dict[str, Any]:
    """The replay as one JSON object in the trace event format; it must have been kept.

    Args:
      names: roles of warps, by index.
    """
    return {
        "displayTimeUnit": "ns",
        "otherData": {
            "kernel": kernel,
            "target": target,
            "clocks": replayed.clocks,
            "unit": "clocks",
        },
        "traceEvents": list(_events(replayed, names)),
    }


def write_trace(trace: Mapping[str, Any], path: Path) -> None:
    """Writes the JSON text to a file.

    Raises:
      SpecError: the file cannot be written.
    """
    write_file(path, json.dumps(trace, separators=(",", ":")))


def _events(replayed: Replayed, names: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    for number, sm in enumerate(replayed.multiprocessors):
        yield _name("process_name", number, 0, f"CTA {number} on SM {number}")
        for row, label, spans in (
            (COPY_IN, "TMA load", sm.memory.spans),
            (COPY_OUT, "TMA store", sm.stores.spans),
            (TENSOR, "tensor core", sm.tensor.line.spans),
        ):
            yield _name("thread_name", number, row, label)
            yield from (_span(number, row, one, "engine") for one in spans)
    for warp in replayed.warps:
        role = names.get(warp.index, "run")
        label = f"warp {warp.index}" + ("" if role == "run" else f" {role}")
        yield _name("thread_name", warp.cta, warp.index, label)
        yield from _warp(warp, role)


def _warp(warp: WarpTimes, role: str) -> Iterator[dict[str, Any]]:
    """Waits, and what lies between them."""
    at = warp.begin
    for wait in warp.waits:
        if wait.begin > at:
            yield _span(warp.cta, warp.index, Span(at, wait.begin, role), "run")
        label = Span(wait.begin, wait.end, f"wait {wait.cause}")
        yield _span(warp.cta, warp.index, label, "wait") | {"args": {"line": wait.line}}
        at = wait.end
    if warp.end > at:
        yield _span(warp.cta, warp.index, Span(at, warp.end, role), "run")


def _span(cta: int, row: int, span: Span, category: str) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.label,
        "cat": category,
        "pid": cta,
        "tid": row,
        "ts": span.begin / CLOCKS_PER_MICROSECOND,
        "dur": (span.end - span.begin) / CLOCKS_PER_MICROSECOND,
        "args": {},
    }


def _name(what: str, cta: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": cta, "tid": row, "args": {"name": name}}
