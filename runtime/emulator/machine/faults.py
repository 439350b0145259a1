"""The one error that the emulated machine raises.

Everything in `machine/` knows addresses, not programs: the core catches a `Fault`, adds the PTX
line, the warp and the lane, and raises it again.
"""

from typing import Literal

from attn_mlir.errors import LaunchError

FaultKind = Literal[
    "out-of-bounds",
    "misaligned",
    "uninitialised",
    "mbarrier",
    "tmem",
    "descriptor",
    "tensor-map",
    "divergent",
    "unsupported",
]


class Fault(LaunchError):
    """A program did something that the machine does not define.

    Attributes:
      kind: the family of the fault; stable, for tests and for filters.
      message: what was got and what is allowed, without the address range.
      address: first byte (or tensor-memory address) concerned, or None.
      byte_count: length of the range at `address`, or None.
      lane: index into the caller's lane list of the first offending lane, or None.
    """

    def __init__(
        self,
        kind: FaultKind,
        message: str,
        *,
        address: int | None = None,
        byte_count: int | None = None,
        lane: int | None = None,
    ):
        where = ""
        if address is not None:
            where = f" at 0x{address:x}"
            if byte_count is not None:
                where += f"..0x{address + byte_count:x} ({byte_count} B)"
        who = "" if lane is None else f" (lane {lane})"
        super().__init__(f"{kind}{where}{who}: {message}")
        self.kind: FaultKind = kind
        self.message = message
        self.address = address
        self.byte_count = byte_count
        self.lane = lane

    def of_lane(self, lane: int) -> "Fault":
        """The same fault, of this lane."""
        at = {"address": self.address, "byte_count": self.byte_count}
        return Fault(self.kind, self.message, **at, lane=lane)
