"""The cp.async of one warp: an actor for each lane, kept in arrays by lane."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..ptx.kinds import WARP_LANES

Lanes = npt.NDArray[np.intp]
Steps = npt.NDArray[np.int32]
_FIRST_COMMITS = 16  # pieces of work for which the table has room at first


class LaneCopies:
    """The cp.async of a warp's lanes, and which of its own each lane knows to be complete.

    They write through the generic proxy: of asynchronous copies, only bulk copies are in the async
    proxy (PTX ISA).

    A lane that waits for its copies learns of its own copies only. This is kept here and not in the
    clock that it shares with other lanes, like all own steps of a thread; others learn both from
    it.

    Attributes:
      first: actor of lane 0's copies; lane n has actor `first` + n.
      steps: for each lane two numbers, like the rows KNOWN and PROXY of a clock: the step up to
        which it knows its own copies to be complete, and that up to which its proxy fence made them
        visible to the async proxy.
    """

    def __init__(self, first: int):
        self.first = first
        self.steps: Steps = np.zeros((2, WARP_LANES), np.int32)
        self.known, self._fenced = self.steps
        self._issued: Steps = np.zeros(WARP_LANES, np.int32)
        self._closed: Steps = np.zeros((_FIRST_COMMITS, WARP_LANES), np.int32)
        self._commits: npt.NDArray[np.intp] = np.zeros(WARP_LANES, np.intp)
        self._records: list[tuple[Lanes, Steps, Any]] = []
        self._lines: dict[
            tuple[int, int], Any
        ] = {}  # of records that `line_of` has read, by lane and step

    def issue(self, lanes: Lanes, line: Any) -> Steps:
        """Each lane issues a piece of work; returns the steps."""
        self._issued[lanes] += 1
        steps = self._issued[lanes]
        self._records.append((lanes, steps, line))
        return steps

    def close(self, lanes: Lanes) -> None:
        """cp.async.commit_group of lanes."""
        at = self._commits[lanes]
        if at.size and int(at.max()) == len(self._closed):
            self._closed = np.concatenate([self._closed, np.zeros_like(self._closed)])
        self._closed[at, lanes] = self._issued[lanes]
        self._commits[lanes] += 1

    def wait(self, lanes: Lanes, newest: int) -> None:
        """The lanes learn that all but their `newest` groups (-1: all copies) are complete."""
        if newest < 0:
            self.known[lanes] = self._issued[lanes]
            return
        at = self._commits[lanes] - 1 - newest
        steps = np.where(at < 0, 0, self._closed[np.maximum(at, 0), lanes])
        self.known[lanes] = np.maximum(self.known[lanes], steps)

    def fence_proxy(self, lanes: Lanes) -> None:
        """fence.proxy.async of lanes."""
        self._fenced[lanes] = self.known[lanes]

    def line_of(self, lane: int, step: int) -> Any:
        """The PTX line where a lane issued its work of a step."""
        for lanes, steps, line in self._records:
            self._lines |= dict.fromkeys(zip(lanes.tolist(), steps.tolist(), strict=True), line)
        self._records.clear()
        return self._lines.get((lane, step))
