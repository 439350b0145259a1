"""Warps and partitions in a replay: what they wait for, and the times that a replay finds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .engines import Barrier, Cell, Multiprocessor, Product
from .join import Issue, Walk
from .sass import Instruction
from .units import UNITS

NEVER = float("inf")


@dataclass(slots=True)
class Wait:
    """A warp stood from `begin` to `end` for a cause."""

    begin: float
    end: float
    cause: str
    line: int


@dataclass(slots=True)
class WarpTimes:
    """The times of a warp in a replay.

    Attributes:
      lost: clocks by cause. stalls: clocks of stall counts beyond one per instruction.
      loops: by back edge (first and last address), when each turn ended.
      clocks: when it read the clock.
      end: when it left the kernel; where its record was cut, when that was.
    """

    cta: int
    index: int
    issued: int = 0
    begin: float = 0.0
    end: float = 0.0
    stalls: float = 0.0
    lost: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    waits: list[Wait] = field(default_factory=list[Wait])
    loops: dict[tuple[int, int], list[float]] = field(
        default_factory=dict[tuple[int, int], list[float]]
    )
    clocks: list[float] = field(default_factory=list[float])
    is_cut: bool = False
    is_stuck: bool = False
    products: int = 0


@dataclass(slots=True)
class Replayed:
    """A cluster on the time axis.

    Attributes:
      clocks: from the first instruction to the end of the last warp that was recorded to its end.
      units: busy clocks of each unit of a partition, by multiprocessor and partition.
      products: clocks that products need, by multiprocessor.
    """

    warps: list[WarpTimes]
    multiprocessors: list[Multiprocessor]
    clocks: float
    units: list[list[list[float]]]
    issued: list[list[int]]
    is_complete: bool
    unmatched: dict[str, int]


class Partition:
    """The warps and units of a quarter of a multiprocessor."""

    __slots__ = ("at", "banks", "busy", "free", "issued", "last", "number", "queued", "sm", "warps")

    def __init__(self, number: int, sm: int):
        self.number, self.sm = number, sm
        self.warps: list[Warp] = []
        self.free = [0.0] * (UNITS + 1)
        self.busy = [0.0] * (UNITS + 1)
        self.banks = [0.0, 0.0]
        self.issued = 0
        self.last: Warp | None = None
        self.at = 0.0
        self.queued = NEVER


class Warp:
    """A warp of a replay: its instructions, scoreboards and the barriers of its cluster."""

    __slots__ = (
        "after", "barriers", "boards", "cause", "current", "gate", "group", "groups", "multiplied",
        "partition", "pending_stores", "previous", "ready", "stored", "stream", "times", "walk",
    )  # fmt: skip

    def __init__(
        self,
        times: WarpTimes,
        partition: Partition,
        walk: Walk,
        barriers: dict[tuple[object, ...], Barrier],
    ):
        self.times, self.partition, self.walk, self.barriers = times, partition, walk, barriers
        self.stream: Iterator[Issue] = iter(walk)
        self.boards: list[list[Cell]] = [[] for _ in range(6)]
        self.gate: Cell | None = None
        self.groups: list[Cell] = []
        self.group: Group | None = None
        self.current: Issue | None = None
        self.previous: Instruction | None = None
        self.after = self.ready = 0.0
        self.cause = ""
        self.pending_stores: list[float] = []
        self.stored = self.multiplied = 0.0


@dataclass(slots=True)
class Group:
    """A warpgroup's products, in order."""

    number: int
    products: list[Product] = field(default_factory=list[Product])
