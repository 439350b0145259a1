"""The cp.async of one warp: each lane's own stream, all of them in arrays by lane."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..ptx.kinds import WARP_LANES

Lanes = npt.NDArray[np.intp]
Steps = npt.NDArray[np.int32]
_FIRST_COMMITS = 16  # that fit before the table has to grow


class LaneCopies:
    """What a warp's lanes copied with cp.async, and what each knows to be complete.

    They write through the generic proxy: of the asynchronous copies only the bulk ones are in the async proxy (PTX ISA).

    A lane that waits for its copies learns of its own alone. That it knows of them is kept here and not in the clock
    that it shares with other lanes, as with everything that a thread did itself; who learns from it learns of both.

    Attributes:
      first: actor of lane 0's copies; those of the other lanes follow.
      steps: per lane, as the rows KNOWN and PROXY of a clock: up to which step it knows its own copies to be complete
        (`known`), and a proxy fence of its made them visible to the async proxy.
    """

    def __init__(self, first: int):
        self.first = first
        self.steps: Steps = np.zeros((2, WARP_LANES), np.int32)
        self.known, self._fenced = self.steps
        self._issued: Steps = np.zeros(WARP_LANES, np.int32)
        self._closed: Steps = np.zeros((_FIRST_COMMITS, WARP_LANES), np.int32)
        self._commits: npt.NDArray[np.intp] = np.zeros(WARP_LANES, np.intp)
        self._places: list[tuple[Lanes, Steps, Any]] = []

    def issue(self, lanes: Lanes, line: Any) -> Steps:
        """The lanes issue a piece of work each: its steps."""
        self._issued[lanes] += 1
        steps = self._issued[lanes]
        self._places.append((lanes, steps, line))
        return steps

    def close(self, lanes: Lanes) -> None:
        """cp.async.commit_group of lanes."""
        at = self._commits[lanes]
        if at.size and int(at.max()) == len(self._closed):
            self._closed = np.concatenate([self._closed, np.zeros_like(self._closed)])
        self._closed[at, lanes] = self._issued[lanes]
        self._commits[lanes] += 1

    def wait(self, lanes: Lanes, newest: int) -> None:
        """The lanes know that all but their `newest` groups, or with -1 all copies, are complete."""
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
        """Where a lane issued its piece of work of a step."""
        for lanes, steps, line in self._places:
            if bool(((lanes == lane) & (steps == step)).any()):
                return line
        return None
