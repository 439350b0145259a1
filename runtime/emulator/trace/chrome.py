"""A trace as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open.

A CTA is a process; its warps, engines and barriers are threads. One step is drawn as a nanosecond.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attn_mlir.files import write_file

from .recorder import Trace
from .timeline import ENGINE_NAMES, FIRST_BARRIER, Slice, Track

STEPS_PER_MICROSECOND = 1000
_ORDER = {"run": 0, "wait": 0, "engine": 0, "phase": 0, "step": 1}


def chrome_trace(trace: Trace) -> dict[str, Any]:
    """The trace as one JSON object in the trace event format."""
    return {
        "displayTimeUnit": "ns",
        "otherData": {
            "kernel": trace.kernel,
            "target": trace.target,
            "steps": trace.end,
            "unit": "one emulated step is drawn as 1 ns",
            "truncated": trace.truncated,
        },
        "traceEvents": list(_events(trace)),
    }


def write_trace(trace: Trace, path: Path) -> None:
    """Write the JSON text to a file.

    Raises:
      SpecError: the file cannot be written.
    """
    write_file(path, json.dumps(chrome_trace(trace), separators=(",", ":")))


def _events(trace: Trace) -> Iterator[dict[str, Any]]:
    yield from _names(trace)
    for item in sorted(trace.slices, key=_position):
        yield _slice(trace, item)
    for number, arrow in enumerate(trace.arrows):
        common = {"cat": "release", "name": "release", "id": number}
        source, target = arrow.source, arrow.target
        begin = max(0, arrow.source_time - 1)  # inside the slice that ends there
        yield {"ph": "s", **common, **_place(source), "ts": begin / STEPS_PER_MICROSECOND}
        end = arrow.target_time - 1
        yield {"ph": "f", "bp": "e", **common, **_place(target), "ts": end / STEPS_PER_MICROSECOND}


def _position(item: Slice) -> tuple[int, int, int, int, int]:
    """Readers want outer slices before inner ones."""
    length = item.end - item.begin
    return (item.track.cta, item.track.row, item.begin, -length, _ORDER[item.category])


def _place(track: Track) -> dict[str, int]:
    return {"pid": track.cta, "tid": track.row}


def _slice(trace: Trace, item: Slice) -> dict[str, Any]:
    args = dict(item.args)
    if "line" in args:
        args["ptx"] = trace.program.line_text(args["line"])
        if origin := trace.program.origin(args["line"]):
            args["source"] = origin
    return {
        "ph": "X",
        "name": item.name,
        "cat": item.category,
        **_place(item.track),
        "ts": item.begin / STEPS_PER_MICROSECOND,
        "dur": (item.end - item.begin) / STEPS_PER_MICROSECOND,
        "args": args,
    }


def _names(trace: Trace) -> Iterator[dict[str, Any]]:
    used = {item.track for item in trace.slices}
    for cta in trace.ctas:
        x, y, z = cta.index
        yield _meta("process_name", cta.number, 0, name=f"CTA ({x},{y},{z}) on SM {cta.sm}")
        yield _meta("process_sort_index", cta.number, 0, sort_index=cta.number)
    labels = {track: label for track, label in trace.warp_names.items() if track in used}
    labels |= trace.barrier_names
    for track in used:
        labels.setdefault(track, ENGINE_NAMES.get(track.row, f"row {track.row}"))
    for track in sorted(labels, key=lambda t: (t.cta, t.row)):
        kind = "barrier: " if track.row >= FIRST_BARRIER else ""
        yield _meta("thread_name", track.cta, track.row, name=kind + labels[track])
        yield _meta("thread_sort_index", track.cta, track.row, sort_index=track.row)


def _meta(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}
