"""Engines of a multiprocessor as queues, and barriers as counters: requests go in, times come out.

A time that depends on what has not been issued yet is a `Cell` without a time; warps that need it
stand until it has one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .chips import Values
from .record import Phase


class Cell:
    """A time that may not be known yet, and who waits for it."""

    __slots__ = ("label", "time", "waiters")

    def __init__(self, label: str, time: float | None = None):
        self.label = label
        self.time = time
        self.waiters: list[Callable[[], None]] = []

    def resolve(self, time: float) -> None:
        """The time is known; who waits goes on."""
        self.time = time
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter()


@dataclass(slots=True)
class Span:
    """An engine was busy with something, in clocks."""

    begin: float
    end: float
    label: str


class Barrier:
    """A barrier of any kind: phases complete when as much has arrived as in the recorded run.

    Attributes:
      times: when each completed phase was complete.
    """

    def __init__(self, name: str, phases: list[Phase], completed: int):
        self.name = name
        self.needs = phases[:completed]
        self.times: list[float] = []
        self._arrivals = self._bytes = 0
        self._last = 0.0
        self._cells: dict[int, list[Cell]] = {}

    def arrive(self, time: float, arrivals: int, byte_count: int = 0) -> None:
        """Lanes or engines arrive, or bytes do, at a time."""
        self._arrivals += arrivals
        self._bytes += byte_count
        self._last = max(self._last, time)
        while len(self.times) < len(self.needs):
            need = self.needs[len(self.times)]
            if self._arrivals < need.arrivals or self._bytes < need.bytes:
                return
            self._arrivals -= need.arrivals
            self._bytes -= need.bytes
            number = len(self.times)
            self.times.append(self._last)
            for cell in self._cells.pop(number, []):
                cell.resolve(self._last)

    def over(self, phase: int) -> Cell:
        """When a phase is complete."""
        if phase < 0:
            return Cell(self.name, 0.0)
        if phase < len(self.times):
            return Cell(self.name, self.times[phase])
        cell = Cell(self.name)
        self._cells.setdefault(phase, []).append(cell)
        return cell


@dataclass(slots=True, eq=False)
class Product:
    """One wgmma of a warpgroup: forms when its four warps have issued it.

    Attributes:
      service: clocks that it needs if nothing slows it down. steps: of eight columns.
      ended: when it leaves the queue. done: when a warp sees its result.
    """

    group: int
    service: float
    steps: int
    ended: Cell
    done: Cell
    parts: int = 0
    time: float = 0.0


@dataclass(slots=True)
class Engine:
    """A unit of a multiprocessor that takes one request after another."""

    free: float = 0.0
    busy: float = 0.0
    spans: list[Span] = field(default_factory=list[Span])

    def take(self, time: float, service: float, label: str, keep: bool) -> tuple[float, float]:
        """Begin and end of a request that comes at a time."""
        begin = max(time, self.free)
        end = self.free = begin + service
        self.busy += service
        if keep and service:
            last = self.spans[-1] if self.spans else None
            if last is not None and last.label == label and last.end >= begin - 1:
                last.end = end
            else:
                self.spans.append(Span(begin, end, label))
        return begin, end


PARTITIONS = 4  # of a multiprocessor
At = Callable[[float, Callable[[float], None]], None]


class Lane:
    """The tensor core of one partition: a product is a row of steps of eight columns.

    The first clocks of a step read and write registers. No instruction of the partition that reads
    registers issues meanwhile; a step in turn waits while such instructions issue every clock.

    Attributes:
      left: steps of the product that have not begun. free: earliest clock of the next one.
    """

    __slots__ = ("free", "held", "hold", "last", "left", "step")

    def __init__(self, hold: float):
        self.hold = hold
        self.left = 0
        self.free = self.held = self.step = 0.0
        self.last = -1.0

    def begin(self, now: float, steps: int, service: float) -> None:
        """A product begins."""
        self.left, self.step, self.free = steps, service / steps, max(now, self.free)

    def available(self, now: float, is_multiply_add: bool = False) -> float:
        """The first clock from `now` on at which an instruction may read registers.

        A step that is due goes first, unless multiply-adds follow each other clock by clock.
        """
        goes_on = is_multiply_add and now <= self.last + 1
        due = now if goes_on else now + 0.001
        if self.left and self.free < due:
            begun = min(self.left, math.ceil((due - self.free) / self.step))
            self.free += begun * self.step
            self.left -= begun
            self.held = self.free - self.step + self.hold
        return max(now, self.held)

    def issue(self, now: float, is_multiply_add: bool) -> None:
        """An instruction reads registers."""
        self.free = max(self.free, now + 1)
        self.last = now if is_multiply_add else -1.0

    @property
    def end(self) -> float:
        """When the product is done if nothing is in its way."""
        return self.free + self.left * self.step


class TensorCore:
    """The tensor cores of a multiprocessor: products in the order in which they are complete.

    A product runs on all four partitions together, and the slowest one decides.

    Args:
      at: calls a function at a time.
    """

    def __init__(self, values: Values, at: At, keep: bool):
        self.values, self.at = values, at
        self.lanes = [Lane(values["tensor_hold"]) for _ in range(PARTITIONS)]
        self.line = Engine()
        self.keep = keep
        self.is_active = False
        self.slowed = 0.0
        self._queue: deque[Product] = deque()
        self._begin = 0.0

    def multiply(self, product: Product) -> None:
        """All warps of a group have issued a product."""
        self._queue.append(product)
        if not self.is_active:
            self.is_active = True
            self.at(product.time + self.values["tensor_fill"], self._start)

    def _start(self, now: float) -> None:
        if not self._queue:
            self.is_active = False
            return
        first = self._queue[0]
        self._begin = max(now, first.time)
        for lane in self.lanes:
            lane.begin(self._begin, first.steps, first.service)
        self.at(self._begin + first.service, self._look)

    def _look(self, now: float) -> None:
        """The product is done, unless instructions kept a partition's registers from it."""
        for lane in self.lanes:
            lane.available(now)
        end = max(lane.end for lane in self.lanes)
        if end > now + 0.5:
            self.at(end, self._look)
            return
        product = self._queue.popleft()
        self.slowed += now - self._begin - product.service
        self.line.take(self._begin, now - self._begin, f"group {product.group}", self.keep)
        product.ended.resolve(now)
        product.done.resolve(now + self.values["tensor_drain"])
        self._start(now)


class Multiprocessor:
    """The engines that all warps of a multiprocessor share."""

    def __init__(self, values: Values, at: At, keep: bool):
        self.values, self.keep = values, keep
        self.made: list[Product] = []
        self.tensor = TensorCore(values, at, keep)
        self.copies = Engine()
        self.memory = Engine()
        self.stores = Engine()
        self.port = Engine()
        self.sync = Engine()

    def load(self, time: float, byte_count: float, label: str) -> float:
        """When a copy into shared memory is complete."""
        values = self.values
        begin, _ = self.copies.take(time, values["copy_issue"], "issue", False)
        first, end = self.memory.take(begin, byte_count / values["copy_bytes"], label, self.keep)
        return max(end, first) + values["copy_latency"]

    def store(self, time: float, byte_count: float, label: str) -> float:
        """When a copy out of shared memory has read its source."""
        values = self.values
        begin, _ = self.copies.take(time, values["copy_issue"], "issue", False)
        _, end = self.stores.take(begin, byte_count / values["store_bytes"], label, self.keep)
        return end
