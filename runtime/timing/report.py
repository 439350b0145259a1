"""The report of a replay: clocks of a loop's iteration, waits of roles, the limiting unit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .units import ALU, HEAVY, LITE, XU
from .warps import Replayed, WarpTimes

LEAST_TURNS = 4  # of a loop that counts as steady
OUTER = 2.5  # a turn this many times as long as the median one has left the loop in between
GROUP_WARPS = 4


@dataclass(frozen=True)
class Loop:
    """A loop of a role's code.

    Attributes:
      first, last: addresses of the machine code.
      turns: of one warp. clocks: of a turn, the median.
      has_products: the role's warps issue products of the tensor core.
    """

    role: str
    first: int
    last: int
    turns: int
    clocks: float
    has_products: bool

    def contains(self, other: Loop) -> bool:
        """Whether another loop of the role lies within this one."""
        is_within = self.first <= other.first and other.last <= self.last
        return self.role == other.role and is_within and self != other


@dataclass(frozen=True)
class Role:
    """Warps that do the same, with the parts of their time that they lose, by cause.

    Attributes:
      issued: instructions of a warp, the mean.
      issuing: the part of the time in which they issue or their stall counts run.
    """

    name: str
    warps: tuple[int, ...]
    issued: float
    clocks: float
    issuing: float
    lost: dict[str, float]


@dataclass(frozen=True)
class Unit:
    """A unit of a multiprocessor and the part of the time in which it is busy."""

    name: str
    busy: float


@dataclass(frozen=True)
class Report:
    """The results of one replay.

    Attributes:
      clocks: from the first instruction to the last one recorded.
      units: the busiest first; the first one is the limit.
    """

    clocks: float
    loops: tuple[Loop, ...]
    roles: tuple[Role, ...]
    units: tuple[Unit, ...]
    is_complete: bool

    @property
    def tile(self) -> Loop | None:
        """The loop over key tiles: of the innermost ones with products, where most time passes."""
        made = [one for one in self.loops if one.has_products] or list(self.loops)
        made = [one for one in made if not any(one.contains(other) for other in made)]
        return max(made, key=lambda one: one.turns * one.clocks, default=None)


def report(replayed: Replayed, names: Mapping[int, str]) -> Report:
    """Summarises a replay.

    Args:
      names: roles of warps, by index; warps without one are named by their group.
    """
    groups: dict[str, list[WarpTimes]] = defaultdict(list)
    for warp in replayed.warps:
        name = names.get(warp.index) or "warps"
        first = warp.index - warp.index % GROUP_WARPS
        groups[f"{name} {first}" if warp.products or not names else name].append(warp)
    roles = tuple(_role(name, warps) for name, warps in groups.items())
    loops = [loop for name, warps in groups.items() for loop in _loops(name, warps)]
    return Report(replayed.clocks, tuple(loops), roles, _units(replayed), replayed.is_complete)


def _role(name: str, warps: Sequence[WarpTimes]) -> Role:
    clocks = max(1.0, float(np.mean([one.end - one.begin for one in warps])))
    lost: dict[str, float] = defaultdict(float)
    for warp in warps:
        for cause, amount in warp.lost.items():
            lost[cause] += amount / len(warps) / clocks
    ordered = dict(sorted(lost.items(), key=lambda item: -item[1]))
    return Role(
        name=name,
        warps=tuple(one.index for one in warps),
        issued=float(np.mean([one.issued for one in warps])),
        clocks=clocks,
        issuing=max(0.0, 1 - sum(ordered.values())),
        lost=ordered,
    )


def _loops(name: str, warps: Sequence[WarpTimes]) -> list[Loop]:
    ends_of: dict[tuple[int, int], list[np.ndarray]] = defaultdict(list)
    for warp in warps:
        for edge, times in warp.loops.items():
            if len(times) > LEAST_TURNS:
                ends_of[edge].append(np.diff(times))
    result: list[Loop] = []
    for (first, last), ends in ends_of.items():
        every = np.concatenate(ends)
        within = every[every < OUTER * np.median(every)]
        result.append(
            Loop(
                name,
                first,
                last,
                max(len(one) for one in ends) + 2,
                float(np.median(within)),
                any(one.products for one in warps),
            )
        )
    return result


def _units(replayed: Replayed) -> tuple[Unit, ...]:
    clocks = max(1.0, replayed.clocks)
    units: list[Unit] = []
    for number, sm in enumerate(replayed.multiprocessors):
        suffix = f" of CTA {number}" if len(replayed.multiprocessors) > 1 else ""
        partitions = replayed.units[number]
        per = {
            "FMA": max(p[HEAVY] + p[LITE] for p in partitions) / 2,
            "ALU": max(p[ALU] for p in partitions),
            "XU (exponentials, conversions)": max(p[XU] for p in partitions),
            "issue slots": max(replayed.issued[number]),
            "tensor core": sm.tensor.line.busy,
            "loads": sm.memory.busy,
            "stores": sm.stores.busy,
        }
        units += [Unit(name + suffix, busy / clocks) for name, busy in per.items()]
    return tuple(sorted(units, key=lambda one: -one.busy))


def table(reports: Mapping[str, Report], *, title: str, clock_mhz: int) -> str:
    """The report as text.

    Args:
      reports: by corner of the constants' ranges: "low", "nominal" and "high".
      clock_mhz: for times beside clocks.
    """
    main = reports["nominal"]
    lines = [title, ""]
    tile = main.tile
    if tile is not None:
        others = [one.tile for one in reports.values()]
        ends = [one.clocks for one in others if one is not None]
        lines.append(
            f"a turn of the loop at {tile.first:#x} ({tile.role}, {tile.turns} turns): "
            f"{tile.clocks:.0f} clocks, between {min(ends):.0f} and {max(ends):.0f}"
        )
    ends = [one.clocks for one in reports.values()]
    what = "the CTA" if main.is_complete else "the part that was recorded"
    lines.append(
        f"{what}: {main.clocks:.0f} clocks, between {min(ends):.0f} and {max(ends):.0f} "
        f"({main.clocks / clock_mhz:.1f} us at {clock_mhz} MHz)"
    )
    limit = main.units[0]
    lines += [f"limit: {limit.name}, busy {limit.busy:.0%} of the time", "", "unit, busy"]
    lines += [f"  {one.name:34} {one.busy:6.1%}" for one in main.units if one.busy >= 0.005]
    lines += ["", "role, its time, the parts of it lost to"]
    for role in main.roles:
        first, last = min(role.warps), max(role.warps)
        warps = f"{first}" if first == last else f"{first}-{last}"
        causes = [f"{cause} {part:.0%}" for cause, part in role.lost.items() if part >= 0.01][:6]
        lines.append(
            f"  {role.name + ' (' + warps + ')':26} {role.clocks:8.0f}  issues {role.issuing:.0%}; "
            + ", ".join(causes)
        )
    return "\n".join(lines)
