"""Speeds over the length of sequences as SVG: a panel for each head size and mask, a line for each program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT = 190, 150  # of the axes of a panel, in pixels
LEFT, TOP, RIGHT, BELOW = 46, 30, 14, 62  # beside them
STEP = 200  # TFLOP/s between lines of the grid
STYLES = {"ours": "#c0392b", "cuDNN": "#2c6fbb"}  # colours; other programs are grey

Row = Mapping[str, Any]
"""A cell as `bench/attention.py --results` writes it: `title`, `length`, `rates` in TFLOP/s by name,
`clock`, what the GPU said of its clock and power."""


def picture(rows: Sequence[Row], caption: str) -> str:
    """The SVG text.

    Args:
      rows: in the order of their panels; those of a panel have one title.
      caption: conditions of the run, one line.
    """
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(row["title"], []).append(row)
    top = STEP * math.ceil(max(rate for row in rows for rate in row["rates"].values()) / STEP)
    across = min(len(panels), 5)
    down = -(-len(panels) // across)
    wide, high = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BELOW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{across * wide}" height="{down * high + 44}"'
        ' font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (title, panel) in enumerate(panels.items()):
        x, y = number % across * wide + LEFT, number // across * high + TOP
        parts += _panel(title, panel, x, y, top)
    names = list(dict.fromkeys(name for row in rows for name in row["rates"]))
    for number, name in enumerate(names):
        x, y = LEFT + 110 * number, down * high + 14
        parts.append(f'<path d="M{x} {y - 4}h24" {_stroke(name)}/>')
        parts.append(f'<text x="{x + 30}" y="{y}">{escape(name)}</text>')
    parts.append(f'<text x="{LEFT}" y="{down * high + 34}" fill="#555">{escape(caption)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _stroke(name: str, fill: str = "none") -> str:
    colour = STYLES.get(name, "#777")
    return f'stroke="{colour}" stroke-width="2" fill="{fill}"'


def _panel(title: str, rows: Sequence[Row], x: int, y: int, top: int) -> list[str]:
    """One panel whose axes begin at (x, y), with rates up to `top`."""
    lengths = [row["length"] for row in rows]
    first, last = math.log2(min(lengths)), math.log2(max(lengths))

    def place(length: int, rate: float) -> tuple[float, float]:
        share = (math.log2(length) - first) / (last - first) if last > first else 0.5
        return x + share * WIDTH, y + HEIGHT * (1 - rate / top)

    parts = [f'<text x="{x}" y="{y - 10}" font-weight="bold">{escape(title)}</text>']
    for rate in range(0, top + 1, STEP):
        at = place(lengths[0], rate)[1]
        parts.append(f'<path d="M{x} {at:.1f}h{WIDTH}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 6}" y="{at + 4:.1f}" text-anchor="end">{rate}</text>')
    for row in rows:
        at = place(row["length"], 0)[0]
        parts.append(
            f'<text x="{at:.1f}" y="{y + HEIGHT + 16}" text-anchor="middle">{row["length"]}</text>'
        )
        for line, said in enumerate(row["clock"].split(", ")[:2]):
            parts.append(
                f'<text x="{at:.1f}" y="{y + HEIGHT + 30 + 12 * line}" text-anchor="middle" '
                f'font-size="8" fill="#555">{escape(said)}</text>'
            )
    for name in dict.fromkeys(name for row in rows for name in row["rates"]):
        points = [place(row["length"], row["rates"][name]) for row in rows if name in row["rates"]]
        line = "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        parts.append(f'<path d="M{line}" {_stroke(name)}/>')
        dot = f'r="2.5" {_stroke(name, "white")}'
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" {dot}/>' for a, b in points]
    return parts
