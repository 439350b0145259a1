"""Draws the roles of a kernel as boxes, and the rings between them as arrows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import cast

from attn_mlir.cli.show import printable, records
from attn_mlir.errors import SpecError
from attn_mlir.runtime.file.bundle import Bundle

BOX_WIDTH, BOX_HEIGHT = 132.0, 46.0  # px
COLUMN, ROW, MARGIN, TITLE = 250.0, 150.0, 30.0, 80.0
MOST_ROLES = 32  # warps of a CTA
LETTER = 6.2  # width of a letter of a label, px
COLOURS = {"shared": "#2f6fb7", "tensor": "#b8662b", "": "#777777"}


@dataclass(frozen=True)
class Arrow:
    """A ring from a role that fills it to one that reads it."""

    source: str
    target: str
    label: str
    colour: str


def arrows_of(rings: Sequence[Mapping[str, object]]) -> list[Arrow]:
    """An arrow for each pair of a producer and a consumer of a ring."""
    arrows: list[Arrow] = []
    for ring in rings:
        for producer in _names(ring.get("producers")):
            for consumer in _names(ring.get("consumers")):
                source = producer.partition(" (")[0]
                colour = COLOURS.get(str(ring.get("space", "")), COLOURS[""])
                arrows.append(Arrow(source, consumer, str(ring.get("ring")), colour))
    return arrows


def _names(value: object) -> list[str]:
    return list(map(str, cast("list[object]", value))) if isinstance(value, list) else []


def layers(roles: Sequence[str], arrows: Sequence[Arrow]) -> dict[str, int]:
    """The column of each role: one more than that of any role whose tiles it reads.

    An arrow back to a role from which its own source is reached counts as none.
    """
    reads: dict[str, list[str]] = {role: [] for role in roles}
    for arrow in arrows:
        if arrow.source in reads and arrow.target in reads and arrow.source != arrow.target:
            reads[arrow.source].append(arrow.target)
    column = dict.fromkeys(roles, 0)
    done: set[str] = set()
    order: list[tuple[str, str]] = []

    def search(role: str, path: frozenset[str]) -> None:
        done.add(role)
        for target in reads[role]:
            if target not in path:
                order.append((role, target))
                if target not in done:
                    search(target, path | {target})

    fed = {arrow.target for arrow in arrows}
    for role in [*(name for name in roles if name not in fed), *roles]:
        if role not in done:
            search(role, frozenset({role}))
    for _ in roles:
        for source, target in order:
            if column[target] <= column[source] < len(roles) - 1:
                column[target] = column[source] + 1
    return column


def draw(bundle: Bundle) -> str:
    """The picture of a bundle's kernel, SVG.

    Raises:
      SpecError: the bundle does not say which rings it has, or has more roles than a CTA has warps.
    """
    roles = [str(item.get("role")) for item in records(bundle.report.get("roles"))]
    rings = records(bundle.report.get("rings"))
    if not roles or not rings:
        raise SpecError(f"the bundle of {bundle.entry} does not say which rings it has")
    if len(roles) > MOST_ROLES:
        raise SpecError(f"a kernel has at most {MOST_ROLES} roles, got {len(roles)}")
    return picture(f"{bundle.entry} for {bundle.target}", roles, rings)


def picture(title: str, roles: Sequence[str], rings: Sequence[Mapping[str, object]]) -> str:
    """Roles and the rings between them, SVG.

    Args:
      rings: records as of a bundle's report.
    """
    arrows = arrows_of(rings)
    column = layers(roles, arrows)
    rows: dict[int, list[str]] = {}
    for role in roles:
        rows.setdefault(column[role], []).append(role)
    positions = {
        role: (MARGIN + number * COLUMN, TITLE + MARGIN + row * ROW)
        for number, names in rows.items()
        for row, role in enumerate(names)
    }
    width = 2 * MARGIN + max(rows) * COLUMN + BOX_WIDTH
    height = TITLE + 2 * MARGIN + (max(map(len, rows.values())) - 1) * ROW + BOX_HEIGHT + 60
    lines = [_head(width, height, title)]
    lanes: dict[tuple[str, str], int] = {}
    for arrow in arrows:
        ends = arrow.source, arrow.target
        if arrow.source in positions and arrow.target in positions:
            lanes[ends] = lanes.get(ends, -1) + 1
            lines.append(_arrow(arrow, positions, lanes[ends]))
    lines += [_box(role, *positions[role]) for role in roles]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _head(width: float, height: float, title: str) -> str:
    marker = "".join(
        f'<marker id="to{number}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        f'markerHeight="7" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
        for number, colour in enumerate(COLOURS.values())
    )
    legend = "".join(
        f'<tspan fill="{colour}" dx="14">{name or "token"}</tspan>'
        for name, colour in COLOURS.items()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="#ffffff"/><defs>{marker}</defs>'
        f'<text x="{MARGIN:g}" y="24" font-weight="bold">{escape(title)}{legend}</text>'
    )


def _box(role: str, x: float, y: float) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH:g}" height="{BOX_HEIGHT:g}" rx="6" '
        'fill="#f3f5f8" '
        f'stroke="#44546a"/><text x="{x + BOX_WIDTH / 2:g}" y="{y + BOX_HEIGHT / 2 + 4:g}" '
        f'text-anchor="middle">{escape(printable(role))}</text>'
    )


def _arrow(arrow: Arrow, positions: Mapping[str, tuple[float, float]], lane: int) -> str:
    """A curve: straight on to the next column, above the boxes to a later one, below them back."""
    (x0, y0), (x1, y1) = positions[arrow.source], positions[arrow.target]
    number = list(COLOURS.values()).index(arrow.colour)
    columns = round((x1 - x0) / COLUMN)
    if columns == 1:
        shift = 12.0 + 16.0 * lane
        a, b, bend = (x0 + BOX_WIDTH, y0 + shift), (x1, y1 + shift), (x1 - x0 - BOX_WIDTH) / 2
        bends = f"{a[0] + bend:g} {a[1]:g} {b[0] - bend:g} {b[1]:g}"
        path = f"M{a[0]:g} {a[1]:g}C{bends} {b[0]:g} {b[1]:g}"
        at = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2 - 3)
    else:
        down = columns < 1
        reach = (18.0 + 14.0 * abs(columns) + 14.0 * lane) * (1 if down else -1)
        a = (x0 + BOX_WIDTH * 0.6 + 10 * lane, y0 + (BOX_HEIGHT if down else 0))
        b = (x1 + BOX_WIDTH * 0.4 - 10 * lane, y1 + (BOX_HEIGHT if down else 0))
        turn_y = (max if down else min)(a[1], b[1]) + reach
        path = f"M{a[0]:g} {a[1]:g}C{a[0]:g} {turn_y:g} {b[0]:g} {turn_y:g} {b[0]:g} {b[1]:g}"
        at = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 8 + turn_y * 0.75 + 4)
    half_width = len(arrow.label) * LETTER / 2 + 2
    return (
        f'<path d="{path}" fill="none" stroke="{arrow.colour}" stroke-width="1.4" '
        f'marker-end="url(#to{number})"/>'
        f'<rect x="{at[0] - half_width:g}" y="{at[1] - 10:g}" width="{2 * half_width:g}" '
        'height="13" fill="#ffffff"/>'
        f'<text x="{at[0]:g}" y="{at[1]:g}" text-anchor="middle" '
        f'fill="{arrow.colour}">{escape(printable(arrow.label))}</text>'
    )
