"""The interface of observers of a launch: accesses and synchronisation, in words.

A launch has at most one observer; without one (None) each event costs one comparison.
"""

from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

AccessSpace = Literal["global", "shared", "tmem"]
Proxy = Literal["generic", "async", "tensor"]


class Observer(Protocol):
    """Receives every memory access and synchronisation of a launch, in execution order."""

    def access(
        self,
        who: str,
        line: int,
        proxy: Proxy,
        space: AccessSpace,
        cta: int,
        addresses: npt.NDArray[np.integer[Any]],
        width: int,
        is_write: bool,
    ) -> None:
        """`width` bytes at each address were read or written.

        Args:
          who: the warp or engine, such as "cta 0 warp 3".
          line: PTX line.
          cta: rank in the grid of the CTA that owns the memory; 0 for global memory.
        """
        ...

    def sync(self, who: str, line: int, kind: str, target: tuple[Any, ...]) -> None:
        """A synchronisation event, or a tensor-core instruction.

        Args:
          kind: "init", "arrive", "complete_tx" and "wait" of mbarriers, "barrier", "fence",
            "commit" (when issued; its arrival follows), and "mma" when a product is formed.
          target: what it acts on: ("mbarrier", CTA rank, offset), ("bar", CTA rank, number),
            ("cluster",), (fence opcode,) or (CTA rank, `machine.tensorcore.Mma`).
        """
        ...
