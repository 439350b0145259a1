"""A discrete-event simulation of ranks: a clock, processes, multiprocessors, shared links."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any

Process = Generator["float | Event", None, None]
"""A process waits for what it yields: so many seconds, or an event."""


class Event:
    """An event that happens once; processes and functions wait for it."""

    __slots__ = ("_waiting", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self._waiting: list[Callable[[], Any]] = []

    def then(self, act: Callable[[], Any]) -> None:
        """Calls a function when the event happens, or at once if it has happened."""
        if self.is_over:
            act()
        else:
            self._waiting.append(act)

    def happen(self) -> None:
        self.is_over = True
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            act()


class Countdown(Event):
    """An event that happens after `count` calls of `one`."""

    __slots__ = ("_left",)

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count

    def one(self) -> None:
        self._left -= 1
        if not self._left:
            self.happen()


class Clock:
    """Simulated time, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0
        self._queue: list[tuple[float, int, Callable[[], Any]]] = []

    def after(self, seconds: float, act: Callable[[], Any]) -> None:
        """Calls a function after `seconds` of simulated time."""
        self.count += 1
        heapq.heappush(self._queue, (self.now + seconds, self.count, act))

    def timer(self, seconds: float) -> Event:
        found = Event()
        self.after(seconds, found.happen)
        return found

    def start(self, process: Process) -> Event:
        """Runs a process; the event happens at its end."""
        ended = Event()

        def resume() -> None:
            for wait in process:
                if isinstance(wait, Event):
                    if not wait.is_over:
                        wait.then(resume)
                        return
                elif wait > 0:
                    self.after(wait, resume)
                    return
            ended.happen()

        resume()
        return ended

    def run(self) -> None:
        """Advances time until no call is scheduled."""
        queue = self._queue
        while queue:
            self.now, _, act = heapq.heappop(queue)
            act()


class Multiprocessors:
    """The multiprocessors of one GPU.

    One attention kernel runs at a time. It takes all free multiprocessors except a margin, also
    those that become free while it runs. An NCCL kernel needs several multiprocessors at once: NCCL
    kernels wait in order, and keep their multiprocessors until they end.
    """

    def __init__(self, clock: Clock, count: int, margin: int) -> None:
        self._clock, self._count, self._margin = clock, count, margin
        self._others = 0  # multiprocessors that NCCL holds
        self._waiting: deque[tuple[int, Event]] = deque()
        self._kernel: Event | None = None
        self._taken = 0
        self._left = self._since = 0.0
        self._version = 0

    def attend(self, work: float) -> Event:
        """Runs an attention kernel.

        Args:
          work: seconds times multiprocessors.
        """
        assert self._kernel is None, "kernels of a stream run one behind the other"
        self._kernel, self._left, self._taken = Event(), work, 0
        self._grow()
        return self._kernel

    def take(self, count: int) -> Event:
        """Waits for `count` multiprocessors, which `release` returns."""
        granted = Event()
        self._waiting.append((count, granted))
        self._grant()
        return granted

    def release(self, count: int) -> None:
        self._others -= count
        self._grant()
        if self._kernel is not None:
            self._grow()

    def _grow(self) -> None:
        """Gives free multiprocessors to the attention kernel, and reschedules its end."""
        now = self._clock.now
        self._left -= self._taken * (now - self._since)
        self._since = now
        self._taken = max(self._taken, self._count - max(self._margin, self._others))
        if not self._taken:
            return
        self._version += 1
        version = self._version
        self._clock.after(max(0.0, self._left) / self._taken, lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version != self._version or self._kernel is None:
            return
        ended, self._kernel, self._taken = self._kernel, None, 0
        self._grant()
        ended.happen()

    def _grant(self) -> None:
        while self._waiting:
            count, granted = self._waiting[0]
            if self._taken + self._others + count > self._count:
                return
            self._waiting.popleft()
            self._others += count
            granted.happen()


class Port:
    """One direction of a GPU's link; flows through it share its bandwidth equally."""

    __slots__ = ("bandwidth", "flows")

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.flows: list[Flow] = []


class Flow(Event):
    """A transfer of bytes through several ports, at its smallest share of their bandwidths."""

    __slots__ = ("_clock", "_left", "_ports", "_rate", "_since", "_version")

    def __init__(self, clock: Clock, count: float, ports: Iterable[Port]) -> None:
        super().__init__()
        self._clock, self._left, self._ports = clock, count, tuple(ports)
        self._rate, self._since, self._version = 0.0, clock.now, 0
        for port in self._ports:
            port.flows.append(self)
        self._share()

    def _share(self) -> None:
        """Renews the rates of all flows that share a port with this one."""
        if all(len(port.flows) == 1 for port in self._ports):
            self._renew()
            return
        for flow in {id(x): x for port in self._ports for x in port.flows}.values():
            flow._renew()

    def _renew(self) -> None:
        now = self._clock.now
        rate = min(port.bandwidth / len(port.flows) for port in self._ports)
        if rate == self._rate:
            return
        self._left -= self._rate * (now - self._since)
        self._rate, self._since = rate, now
        self._version += 1
        version = self._version
        self._clock.after(max(0.0, self._left) / rate, lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version != self._version:
            return
        for port in self._ports:
            port.flows.remove(self)
        for flow in {id(x): x for port in self._ports for x in port.flows}.values():
            flow._renew()
        self.happen()
