"""Draws the time of each scheme over the number of ranks, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 520, 300  # of the plot area, in pixels
LEFT, TOP, RIGHT, BELOW = 70, 40, 150, 56  # margins of the plot area, in pixels
COLOURS = {
    "limit": "#999999",
    "ring-pull": "#c0392b",
    "ring-nccl": "#e08e2b",
    "gather": "#2c6fbb",
    "ulysses": "#2e8b57",
    "2d": "#7d3c98",
}
Points = Mapping[int, float]  # seconds by ranks


def picture(lines: Mapping[str, Points], title: str, caption: str) -> str:
    """The SVG text; both axes are logarithmic.

    Args:
      lines: points by the name of a scheme, or `limit`; they have at least one point together.
      title, caption: one line each.
    """
    ranks = sorted({x for points in lines.values() for x in points})
    seconds = [y for points in lines.values() for y in points.values()]
    low, high = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)))
    high = max(high, low + 1)
    first, last = math.log2(ranks[0]), math.log2(max(ranks[-1], 2 * ranks[0]))

    def place(rank: int, time: float) -> tuple[float, float]:
        across = (math.log2(rank) - first) / (last - first)
        return LEFT + across * WIDTH, TOP + HEIGHT * (high - math.log10(time)) / (high - low)

    wide, tall = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BELOW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{tall}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="13" font-weight="bold">{escape(title)}</text>',
        f'<text x="{LEFT}" y="{tall - 10}" fill="#555">{escape(caption)}</text>',
    ]
    for power in range(low, high + 1):
        y = place(ranks[0], 10.0**power)[1]
        parts.append(f'<path d="M{LEFT} {y:.1f}h{WIDTH}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_named(power)}</text>'
        )
    for rank in ranks:
        x = place(rank, 10.0**low)[0]
        parts.append(
            f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{rank}</text>'
        )
    parts.append(
        f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 32}" text-anchor="middle">ranks</text>'
    )
    for number, (name, points) in enumerate(lines.items()):
        parts += _line(name, [place(*at) for at in sorted(points.items())], number)
    return "\n".join([*parts, "</svg>", ""])


def _line(name: str, points: Sequence[tuple[float, float]], number: int) -> list[str]:
    """The SVG elements of a line and of its entry in the legend."""
    colour = COLOURS.get(name, "#333333")
    dash = ' stroke-dasharray="5 4"' if name == "limit" else ""
    stroke = f'stroke="{colour}" stroke-width="2" fill="none"{dash}'
    x, y = LEFT + WIDTH + 14, TOP + 16 + 20 * number
    parts = [
        f'<path d="M{x} {y - 4}h24" {stroke}/>',
        f'<text x="{x + 30}" y="{y}">{escape(name)}</text>',
    ]
    if points:
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        parts.append(f'<path d="M{path}" {stroke}/>')
        parts += [
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="white" stroke="{colour}"/>'
            for a, b in points
        ]
    return parts


def _named(power: int) -> str:
    """10^power seconds, with a unit."""
    unit, exponent = {-2: ("µs", 6), -1: ("ms", 3)}.get(power // 3, ("s", 0))
    return f"{10 ** (power + exponent):g} {unit}"
