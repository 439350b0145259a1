"""mbarrier objects: the state machine of spec-ptx 6, and its 64-bit encoding.

A barrier's phase is open until its pending arrivals and its transaction count are both zero. The
state lives here, not in the bytes of shared memory; tokens carry the 64-bit encoding.

Ambiguities resolved here:
  - spec 6 leaves "arrive when no arrival is pending" and tx-count overflow undefined: both fault.
  - spec 6 asks for inval before the memory is used again: init of a live barrier faults, unless it
    repeats the init of a barrier that nothing has used.
  - spec 6 infers the raw position of the transaction count (bits 21..42): it is stored there in
    two's complement, and nothing reads it back.
"""

from collections.abc import Callable
from dataclasses import dataclass

from .faults import Fault
from .watch import MemoryWatch

MAX_COUNT = (1 << 20) - 1  # arrivals and transaction bytes per phase; spec-ptx 6


@dataclass(slots=True)
class MBarrier:
    """One barrier: `phase` completed phases, `expected`/`pending` arrivals, `tx` bytes awaited."""

    phase: int
    expected: int
    pending: int
    tx: int = 0

    def describe(self) -> str:
        """One line for deadlock reports."""
        return (
            f"phase {self.phase} (parity {self.phase & 1}), "
            f"{self.pending} of {self.expected} arrivals pending, {self.tx} B pending"
        )


def raw_state(barrier: MBarrier) -> int:
    """The 64-bit value that the hardware would hold for this state."""
    full = 1 << 20
    return (
        ((full - barrier.expected) & (full - 1)) << 1
        | (barrier.tx & 0x3FFFFF) << 21
        | ((full - barrier.pending) & (full - 1)) << 43
        | (barrier.phase & 1) << 63
    )


def pending_count(token: int) -> int:
    """mbarrier.pending_count: arrivals that were pending when the token was made."""
    full = 1 << 20
    return (full - ((token >> 43) & (full - 1))) & (full - 1)


class MBarrierTable:
    """The barriers of one CTA, keyed by shared-memory offset.

    Args:
      on_change: called with the offset each time a phase completes, after the state changed; the
        scheduler wakes the warps that wait on that barrier.

    Attributes:
      watch: is told of the arrivals and bytes of engines, or None.
    """

    def __init__(self, on_change: Callable[[int], None] | None = None):
        self.on_change = on_change
        self.watch: MemoryWatch | None = None
        self._barriers: dict[int, MBarrier] = {}

    def offsets(self) -> list[int]:
        """Offsets of all live barriers, ascending."""
        return sorted(self._barriers)

    def init(self, offset: int, count: int) -> None:
        """mbarrier.init. Repeating it on a barrier that nothing has used yet changes nothing.

        Raises:
          Fault: the count is outside 1..2^20-1, the offset is not 8-byte aligned, or a live
            barrier is in use there.
        """
        if offset % 8:
            raise Fault("misaligned", "an mbarrier is 8-byte aligned", address=offset, byte_count=8)
        if not 1 <= count <= MAX_COUNT:
            raise self._fault(offset, f"init count must be 1..{MAX_COUNT}, got {count}")
        fresh = MBarrier(phase=0, expected=count, pending=count)
        live = self._barriers.get(offset)
        if live is not None and live != fresh:
            raise self._fault(
                offset,
                f"init of a live mbarrier without inval: {live.describe()}, new count {count}",
            )
        self._barriers[offset] = fresh

    def inval(self, offset: int) -> None:
        """mbarrier.inval."""
        self.get(offset)
        del self._barriers[offset]

    def get(self, offset: int) -> MBarrier:
        """The live barrier at `offset`.

        Raises:
          Fault: no barrier was initialised there.
        """
        barrier = self._barriers.get(offset)
        if barrier is None:
            offsets_text = ", ".join(f"0x{o:x}" for o in self.offsets()) or "none"
            raise self._fault(
                offset, f"no initialised mbarrier here; live barriers: {offsets_text}"
            )
        return barrier

    def arrive(self, offset: int, count: int = 1) -> int:
        """mbarrier.arrive; returns the token of the phase arrived on."""
        barrier = self.get(offset)
        token = raw_state(barrier)
        if self.watch is not None:
            self.watch.signal(offset, 0)
        self._take_arrivals(offset, barrier, count)
        self._check_phase(offset, barrier)
        return token

    def arrive_no_complete(self, offset: int, count: int = 1) -> int:
        """mbarrier.arrive.noComplete; faults if it would leave no arrival pending."""
        barrier = self.get(offset)
        token = raw_state(barrier)
        if count >= barrier.pending:
            raise self._fault(
                offset, f"arrive.noComplete of {count} would end the phase: {barrier.describe()}"
            )
        self._take_arrivals(offset, barrier, count)
        return token

    def arrive_drop(self, offset: int, count: int = 1) -> int:
        """mbarrier.arrive_drop: arrives, and lowers the count that later phases expect."""
        barrier = self.get(offset)
        if count > barrier.expected:
            raise self._fault(offset, f"arrive_drop of {count}: {barrier.describe()}")
        token = raw_state(barrier)
        barrier.expected -= count
        self._take_arrivals(offset, barrier, count)
        self._check_phase(offset, barrier)
        return token

    def arrive_drop_no_complete(self, offset: int, count: int = 1) -> int:
        """mbarrier.arrive_drop.noComplete; faults as both of its parts do."""
        barrier = self.get(offset)
        if count > barrier.expected:
            raise self._fault(offset, f"arrive_drop of {count}: {barrier.describe()}")
        token = self.arrive_no_complete(offset, count)
        barrier.expected -= count
        return token

    def arrive_expect_tx(self, offset: int, byte_count: int, count: int = 1) -> int:
        """mbarrier.arrive.expect_tx: expects bytes and arrives, in one atomic step."""
        self.expect_tx(offset, byte_count)
        return self.arrive(offset, count)

    def expect_tx(self, offset: int, byte_count: int) -> None:
        """mbarrier.expect_tx."""
        self._add_tx(offset, self.get(offset), byte_count)

    def complete_tx(self, offset: int, byte_count: int) -> None:
        """mbarrier.complete_tx, and what TMA does when its bytes have landed."""
        barrier = self.get(offset)
        if self.watch is not None:
            self.watch.signal(offset, byte_count)
        self._add_tx(offset, barrier, -byte_count)
        self._check_phase(offset, barrier)

    def add_pending(self, offset: int, count: int = 1) -> None:
        """Raise the pending count: cp.async.mbarrier.arrive without .noinc."""
        barrier = self.get(offset)
        if barrier.pending + count > MAX_COUNT:
            raise self._fault(offset, f"more than {MAX_COUNT} pending: {barrier.describe()}")
        barrier.pending += count

    def test(self, offset: int, token: int) -> bool:
        """mbarrier.test_wait: has the phase of `token` completed?"""
        return (self.get(offset).phase & 1) != (token >> 63) & 1

    def test_parity(self, offset: int, parity: int) -> bool:
        """mbarrier.test_wait.parity: has the most recent phase of this parity completed?"""
        if parity not in (0, 1):
            raise self._fault(offset, f"phase parity must be 0 or 1, got {parity}")
        return (self.get(offset).phase & 1) != parity

    def _take_arrivals(self, offset: int, barrier: MBarrier, count: int) -> None:
        if not 1 <= count <= MAX_COUNT:
            raise self._fault(offset, f"arrive count must be 1..{MAX_COUNT}, got {count}")
        if count > barrier.pending:
            raise self._fault(offset, f"{count} arrivals too many: {barrier.describe()}")
        barrier.pending -= count

    def _add_tx(self, offset: int, barrier: MBarrier, byte_count: int) -> None:
        tx = barrier.tx + byte_count
        if abs(tx) > MAX_COUNT:
            raise self._fault(offset, f"tx-count {tx} exceeds {MAX_COUNT}: {barrier.describe()}")
        barrier.tx = tx

    def _check_phase(self, offset: int, barrier: MBarrier) -> None:
        if barrier.pending == 0 and barrier.tx == 0:
            barrier.phase += 1
            barrier.pending = barrier.expected
            if self.on_change is not None:
                self.on_change(offset)

    def _fault(self, offset: int, message: str) -> Fault:
        return Fault("mbarrier", message, address=offset, byte_count=8)
