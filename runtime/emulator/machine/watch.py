"""Interfaces by which memories report the accesses of engines, for race detection."""

from typing import Any, NoReturn, Protocol

from .faults import Fault


class GlobalWatch(Protocol):
    """Receives every access of an engine to global memory, before it takes effect."""

    def box(
        self, address: int, shape: Any, strides: Any, is_write: bool, adds: bool = False
    ) -> None:
        """A strided box whose last dimension is contiguous bytes.

        Args:
          adds: it is reduced into, each element in one piece.
        """


class MemoryWatch(Protocol):
    """Receives every access of an engine to a CTA's memories, before it takes effect."""

    def units(self, units: Any, is_write: bool, quarters: int | None = None) -> None:
        """16-byte units of shared memory, by index (an integer array).

        Args:
          quarters: axis of which each of the four warps of a group uses its quarter; None: each
            uses all.
        """

    def span(self, offset: int, byte_count: int, is_write: bool) -> None:
        """Consecutive bytes of shared memory."""

    def lanes(self, offsets: Any, width: int, values: Any) -> None:
        """A write of `width` bytes at each offset (cp.async): uint8[lanes, width]."""

    def cells(self, first_lane: int, lanes: int, column: int, columns: int, is_write: bool) -> None:
        """A box of tensor memory."""

    def unpromised(self, message: str, column: int, columns: int) -> None:
        """Work on columns of tensor memory rests on what PTX does not promise."""

    def signal(self, offset: int, byte_count: int) -> None:
        """An mbarrier gets an arrival (byte_count 0) or completed transaction bytes."""


class Unwritten(Protocol):
    """Receives reads of memory that nothing wrote; such a read goes on when it returns."""

    def __call__(self, fault: Fault, extent: int) -> None:
        """`fault` is what to raise where such reads end a launch.

        Args:
          extent: bytes of shared memory, or columns of tensor memory, that are read.
        """


def refuse_unwritten(fault: Fault, extent: int) -> NoReturn:
    """An `Unwritten` that ends the launch."""
    raise fault
