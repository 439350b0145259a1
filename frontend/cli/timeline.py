"""Draws one CTA of a trace file: roles and engines as rows, waits lighter than work."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, cast

from attn_mlir.errors import SpecError
from attn_mlir.files import read_file, reason

WIDTH, LEFT, RIGHT, TOP = 1360, 168, 64, 78
LANE, LANE_GAP, SOLO_LANE, ROW_GAP = 7.0, 1.5, 18.0, 13.0
GROUP_WARPS = 4  # warps of a warpgroup, drawn as one row
STEPS_PER_UNIT = 1000  # unit of the file's times
STEPS, CLOCKS = "steps", "clocks"  # of the emulator's traces, of the model's
_UNITS = {
    STEPS: (
        "steps of the emulator",
        "A step is the time in which a warp issues one instruction; engines take what their "
        "documented rates say. No latencies, nothing measured on a GPU.",
    ),
    CLOCKS: (
        "clocks of the model",
        "Clocks of a multiprocessor by the model of time: the emulator's run replayed on the "
        "machine code (docs/timing.md).",
    ),
}
FIRST_ENGINE, FIRST_BARRIER = 100, 200  # number of the first engine's thread in the file
ENGINE, UNNAMED = "engine", "run"
ZIP = b"PK\3\4"  # begin of a bundle file
LETTER = 5.2  # width of a letter of a label, px

_PALETTE = ("#2f6fb7", "#7a52a8", "#2b8a6e", "#b8662b", "#a83f63", "#5c6b2f", "#39788f")
_ENGINE_COLOURS = {
    "tensor core": ("#c0392b", "#d9782d"),
    "TMA load": ("#1f7a4d", "#5a9a3c", "#0e7490", "#8a9a1f"),
    "TMA store": ("#8a6d1a",),
}
_OTHER_ENGINE = ("#555555",)


@dataclass(frozen=True, slots=True)
class Span:
    """A labelled interval from `begin` to `end`, in steps; waits are drawn lighter."""

    begin: float
    end: float
    label: str
    is_wait: bool

    @property
    def target(self) -> str:
        """The ring or buffer that an engine works for, without the slot."""
        return self.label.rpartition(" ")[0]


@dataclass(slots=True)
class Row:
    """A row of the picture: one lane per warp, or one of an engine.

    Attributes:
      colours: the row's colour, or several for the targets of an engine.
      order: sort key of rows.
    """

    label: str
    note: str
    colours: tuple[str, ...]
    lanes: list[list[Span]]
    order: tuple[int, int]

    @property
    def targets(self) -> list[str]:
        """The rings and buffers that an engine writes; none for a role."""
        return sorted({span.target for span in self.lanes[0]}) if self.note == ENGINE else []

    @property
    def lane_height(self) -> float:
        """Pixels."""
        return SOLO_LANE if len(self.lanes) == 1 else LANE

    @property
    def height(self) -> float:
        """Pixels."""
        return len(self.lanes) * (self.lane_height + LANE_GAP) - LANE_GAP


@dataclass(slots=True)
class CtaTrace:
    """The spans of one CTA by thread number, and the names of process and threads."""

    name: str = ""
    threads: dict[int, str] = field(default_factory=dict[int, str])
    spans: dict[int, list[Span]] = field(default_factory=dict[int, list[Span]])
    roles: dict[int, str] = field(default_factory=dict[int, str])


@dataclass(slots=True)
class TraceFile:
    """A trace file: its CTAs by number, and its metadata."""

    kernel: str
    target: str
    ctas: dict[int, CtaTrace]
    unit: str = STEPS


def read_trace(path: Path) -> TraceFile:
    """Reads a trace file of the emulator.

    Raises:
      SpecError: the file cannot be read or is no trace.
    """
    try:
        content = read_file(path)
    except OSError as error:
        raise SpecError(f"cannot read {path}: {reason(error)}") from error
    if content.startswith(ZIP):
        raise SpecError(
            f"{path} is a bundle, not a trace: `attn-mlir run {path} --trace trace.json` runs it "
            "on the emulator and writes one"
        )
    try:
        data = json.loads(content)
    except ValueError as error:
        raise SpecError(f"{path} is not a trace: {error}") from error
    return trace_of(data, path)


def trace_of(data: object, path: Path) -> TraceFile:
    """The trace in a JSON value.

    Args:
      path: of its file, for messages.

    Raises:
      SpecError: it is no trace.
    """
    top = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    if not isinstance(top.get("traceEvents"), list):
        raise SpecError(f"{path} is not a trace: it has no list 'traceEvents'")
    about: object = top.get("otherData")
    facts = cast("dict[str, Any]", about) if isinstance(about, dict) else {}
    trace = TraceFile(str(facts.get("kernel", "")), str(facts.get("target", "")), {})
    if facts.get("unit") == CLOCKS:
        trace.unit = CLOCKS
    try:
        for event in cast("list[dict[str, Any]]", top["traceEvents"]):
            _add(trace, event)
    except (KeyError, TypeError, AttributeError) as error:
        raise SpecError(f"{path} has a malformed event: {error!r}") from error
    if not any(cta.spans for cta in trace.ctas.values()):
        raise SpecError(f"{path} holds no events of an emulated launch")
    return trace


def _add(trace: TraceFile, event: Mapping[str, Any]) -> None:
    if event["ph"] not in ("M", "X"):
        return
    cta = trace.ctas.setdefault(int(event["pid"]), CtaTrace())
    thread = int(event["tid"])
    if event["ph"] == "M":
        if event["name"] == "process_name":
            cta.name = str(event["args"]["name"])
        elif event["name"] == "thread_name":
            cta.threads[thread] = str(event["args"]["name"])
        return
    category = event["cat"]
    if category not in ("run", "wait", "engine"):
        return
    begin = float(event["ts"]) * STEPS_PER_UNIT
    end = begin + float(event["dur"]) * STEPS_PER_UNIT
    label = _label(event)
    if category == "run":
        cta.roles.setdefault(thread, label)
    cta.spans.setdefault(thread, []).append(Span(begin, end, label, category == "wait"))


def _label(event: Mapping[str, Any]) -> str:
    """The label of a span in the picture."""
    name, args = str(event["name"]), event.get("args", {})
    if event["cat"] == "wait":
        return name.removeprefix("wait ")
    if event["cat"] == "engine":
        if "into" in args:
            return f"{args['into']}@{args['column']}"
        filled = str(args.get("signals", name))
        if filled.endswith(" full"):  # of a ring of one slot
            return filled.removesuffix("full") + "0"
        return filled.replace(" full[", " ").removesuffix("]")
    return name


def draw(
    trace: TraceFile,
    *,
    cta: int = 0,
    begin: int | None = None,
    end: int | None = None,
    title: str | None = None,
) -> str:
    """One CTA of a trace as SVG text.

    Args:
      begin, end: steps to show; None for all of the CTA.

    Raises:
      SpecError: there is no such CTA, or nothing to show.
    """
    chosen = trace.ctas.get(cta)
    if chosen is None or not chosen.spans:
        some = ", ".join(str(n) for n in sorted(trace.ctas)[:8])
        raise SpecError(f"the trace has no CTA {cta}: its CTAs are {some} of {len(trace.ctas)}")
    first = min(s.begin for spans in chosen.spans.values() for s in spans)
    last = max(s.end for spans in chosen.spans.values() for s in spans)
    low = first if begin is None else float(begin)
    high = last if end is None else float(end)
    if not low < high:
        raise SpecError(f"nothing to draw from step {low:.0f} to {high:.0f}")
    rows = _rows(chosen)
    lines = _frame(trace, chosen, title, rows, low, high)
    bottom = TOP + sum(row.height + ROW_GAP for row in rows)
    lines += [*_axis(bottom, low, high, trace.unit), *_targets(rows, bottom + 36)]
    top = float(TOP)
    for row in rows:
        lines += _draw_row(row, top, low, high)
        top += row.height + ROW_GAP
    return "\n".join([*lines, "</svg>", ""])


# ---- rows


def _rows(cta: CtaTrace) -> list[Row]:
    """Rows from the top: loads, matrix products, arithmetic, stores."""
    rows: list[Row] = []
    names = list(dict.fromkeys((*cta.roles.values(), UNNAMED)))
    colours = {name: _PALETTE[i % len(_PALETTE)] for i, name in enumerate(names)}
    warps = sorted(number for number in cta.spans if number < FIRST_ENGINE)
    groups: dict[tuple[str, int], list[int]] = {}
    for warp in warps:
        groups.setdefault((cta.roles.get(warp, UNNAMED), warp // GROUP_WARPS), []).append(warp)
    for (role, _), members in groups.items():
        note = f"warp {members[0]}" if len(members) == 1 else f"warps {members[0]}–{members[-1]}"
        lanes = [cta.spans[warp] for warp in members]
        if role == UNNAMED and len(colours) > 1:
            continue  # the kernel names its roles, but these warps belong to none
        rows.append(Row(role, note, (colours[role],), lanes, (_rank(role), members[0])))
    for number in sorted(n for n in cta.spans if FIRST_ENGINE <= n < FIRST_BARRIER):
        name = cta.threads.get(number, f"engine {number}")
        colours_of = _ENGINE_COLOURS.get(name, _OTHER_ENGINE)
        spans = _merged(_numbered(cta.spans[number]))
        rows.append(Row(name, ENGINE, colours_of, [spans], (_rank(name), number)))
    return sorted(rows, key=lambda row: row.order)


def _rank(name: str) -> int:
    order = ("load", "TMA load", "mma", "tensor core", "softmax", "correction", "epilogue")
    if name in order:
        return order.index(name)
    return len(order) + (name in ("TMA store", UNNAMED))


def _numbered(spans: Sequence[Span]) -> list[Span]:
    """Replaces labels `s@0`, `s@128` by `s 0`, `s 1`: slots of a region,
    ordered by first column.
    """
    columns = {tuple(span.label.rsplit("@", 1)) for span in spans if "@" in span.label}
    slots: dict[str, list[int]] = {}
    for name, column in sorted(cast("set[tuple[str, str]]", columns)):
        slots.setdefault(name, []).append(int(column))
    result: list[Span] = []
    for span in spans:
        name, at, column = span.label.rpartition("@")
        if at:
            index = sorted(slots[name]).index(int(column))
            span = Span(span.begin, span.end, f"{name} {index}", span.is_wait)
        result.append(span)
    return result


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Merges adjoining spans with the same label."""
    result: list[Span] = []
    for span in spans:
        if result and result[-1].label == span.label and result[-1].end == span.begin:
            span = Span(result.pop().begin, span.end, span.label, span.is_wait)
        result.append(span)
    return result


# ---- drawing


def _x(step: float, low: float, high: float) -> float:
    inside = min(max(step, low), high)
    return LEFT + (inside - low) / (high - low) * (WIDTH - LEFT - RIGHT)


def _draw_row(row: Row, top: float, low: float, high: float) -> list[str]:
    middle = top + row.height / 2
    lines = [
        f'<text x="{LEFT - 12}" y="{middle - 1:.1f}" class="name">{escape(row.label)}</text>',
        f'<text x="{LEFT - 12}" y="{middle + 11:.1f}" class="note">{escape(row.note)}</text>',
        f'<text x="{WIDTH - RIGHT + 10}" y="{middle + 4:.1f}" class="busy">'
        f"{_busy(row, low, high):.0%}</text>",
    ]
    is_engine = row.note == ENGINE
    colours = {target: row.colours[i % len(row.colours)] for i, target in enumerate(row.targets)}
    paths: dict[tuple[str, str], list[str]] = {}
    for number, lane in enumerate(row.lanes):
        y = top + number * (row.lane_height + LANE_GAP)
        for span in lane:
            left, right = _x(span.begin, low, high), _x(span.end, low, high)
            if right - left < 0.05:
                continue
            colour = colours[span.target] if is_engine else row.colours[0]
            look = (colour, "wait" if span.is_wait else "work")
            box = f"M{left:.1f} {y:.1f}h{right - left:.1f}v{row.lane_height:g}H{left:.1f}z"
            paths.setdefault(look, []).append(box)
    for colour, style in sorted(paths, key=lambda look: look[1]):
        boxes = "".join(paths[colour, style])
        lines.append(f'<path fill="{colour}" class="{style}" d="{boxes}"/>')
    for span in row.lanes[0]:
        left, right = _x(span.begin, low, high), _x(span.end, low, high)
        shown = is_engine or span.is_wait
        if shown and right - left > LETTER * len(span.label) + 4:
            style = "inside" if is_engine else "why"
            lines.append(
                f'<text x="{(left + right) / 2:.1f}" y="{middle + 3.4:.1f}" class="{style}">'
                f"{escape(span.label)}</text>"
            )
    return lines


def _busy(row: Row, low: float, high: float) -> float:
    """The fraction of the time shown in which a row works, averaged over its lanes."""
    total = 0.0
    for lane in row.lanes:
        for span in lane:
            if not span.is_wait:
                total += max(0.0, min(span.end, high) - max(span.begin, low))
    return total / ((high - low) * len(row.lanes))


def _frame(
    trace: TraceFile, cta: CtaTrace, title: str | None, rows: Sequence[Row], low: float, high: float
) -> list[str]:
    height = TOP + sum(row.height + ROW_GAP for row in rows) + 78
    process = cta.name.split(" on ")[0]
    facts = f"{process} · {trace.target} · {high - low:,.0f} {_UNITS[trace.unit][0]}"
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" height="{height:.0f}" '
        'font-family="Inter,Helvetica Neue,Helvetica,Arial,sans-serif">',
        "<style>.name{font-size:13px;font-weight:600;text-anchor:end;fill:#222}"
        ".note{font-size:10px;text-anchor:end;fill:#777}.busy{font-size:12px;fill:#444}"
        ".work{stroke:#fff;stroke-width:.6}.wait{opacity:.2}"
        ".inside{font-size:10px;text-anchor:middle;fill:#fff}"
        ".why{font-size:10px;text-anchor:middle;fill:#444}"
        ".tick{font-size:10px;text-anchor:middle;fill:#666}"
        ".small{font-size:11px;fill:#666}</style>",
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>',
        f'<text x="24" y="32" font-size="18" font-weight="700" fill="#111">'
        f"{escape(title or trace.kernel or 'trace')}</text>",
        f'<text x="24" y="52" class="small">{escape(facts)}</text>',
        *_legend(rows),
    ]


def _legend(rows: Sequence[Row]) -> list[str]:
    colour = next((row.colours[0] for row in rows if len(row.lanes) > 1), _PALETTE[0])
    y = 42
    x = WIDTH - RIGHT - 330
    return [
        f'<rect x="{x}" y="{y}" width="26" height="11" fill="{colour}"/>',
        f'<text x="{x + 34}" y="{y + 10}" class="small">works</text>',
        f'<rect x="{x + 84}" y="{y}" width="26" height="11" fill="{colour}" class="wait"/>',
        f'<text x="{x + 118}" y="{y + 10}" class="small">waits, with the barrier’s name</text>',
        f'<text x="{WIDTH - RIGHT + 10}" y="{TOP - 12}" class="small">busy</text>',
    ]


def _targets(rows: Sequence[Row], y: float) -> list[str]:
    """A line that says which ring or buffer a colour of an engine stands for,
    where it has several.
    """
    lines: list[str] = []
    x = float(LEFT)
    for row in rows:
        named = [(t, row.colours[i % len(row.colours)]) for i, t in enumerate(row.targets) if t]
        if len(named) < 2:
            continue
        lines.append(f'<text x="{x:.0f}" y="{y:.1f}" class="small">{escape(row.label)}</text>')
        x += 6.2 * len(row.label) + 10
        for target, colour in named:
            lines += [
                f'<rect x="{x:.0f}" y="{y - 10:.1f}" width="20" height="11" fill="{colour}"/>',
                f'<text x="{x + 26:.0f}" y="{y:.1f}" class="small">{escape(target)}</text>',
            ]
            x += 26 + 6.5 * len(target) + 12
        x += 22
    return lines


def _axis(top: float, low: float, high: float, unit: str) -> list[str]:
    step = _nice((high - low) / 8)
    lines: list[str] = []
    tick = -(-low // step) * step
    grid: list[str] = []
    while tick <= high:
        x = _x(tick, low, high)
        grid.append(f"M{x:.1f} {TOP - 6}V{top:.1f}")
        lines.append(f'<text x="{x:.1f}" y="{top + 14:.1f}" class="tick">{tick:,.0f}</text>')
        tick += step
    note = _UNITS[unit][1]
    return [
        f'<path d="{"".join(grid)}" stroke="#000" stroke-opacity=".13" stroke-width="1" '
        'fill="none"/>',
        *lines,
        f'<text x="{WIDTH - RIGHT + 10}" y="{top + 14:.1f}" class="small">{unit}</text>',
        f'<text x="{LEFT}" y="{top + 56:.1f}" class="small">{note}</text>',
    ]


def _nice(value: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, ... that is not below a value."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    return next(factor * size for factor in (1, 2, 5, 10) if factor * size >= value)
