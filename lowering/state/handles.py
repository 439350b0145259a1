"""Handles: the lowered forms of tiles, slots, fragments and work tiles.

Handles and roles refer to rings by two protocols: `SlotCursor`, the stage and phase of one side,
and `RingHandle`, its full barriers. The classes that satisfy them lie with the rings.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith
from attn_mlir.dialect.scalars import INT, constant

from ..layouts import Layout, tensor_offset
from .barriers import BarrierRun

Value = Any


class SlotCursor(Protocol):
    """The pipeline state of a ring's producer or consumer, which takes slots in order."""

    def take(self) -> tuple[Value, Value]:
        """Returns stage and phase parity of the next slot, both i32, and advances."""
        ...


class RingHandle(Protocol):
    """A ring at run time, for copies into its slots.

    Attributes:
      op: the operation that allocates it.
      full: the barriers of full slots of all instances, contiguous.
      full_at: for each rank, the CTAs at whose full barriers a commit arrives.
      is_crossing: whether commits or releases arrive at barriers of other CTAs.
    """

    op: ws.AllocRingOp
    full: BarrierRun
    full_at: ws.Targets
    is_crossing: bool


@dataclass(frozen=True)
class TileRef:
    """A tile in shared or tensor memory, whole or part of a larger one.

    Attributes:
      kind: its type.
      address: i32, of the larger tile: bytes from the start of the kernel's shared memory, or a
        tensor-memory address.
      first_column: the larger tile's column at which it begins.
      pitch_rows: rows of the larger tile, if it has more: its 128-byte columns are this many lines
        apart. `address` is then that of the first row.
      block_lines: lines from one block of `pitch_rows` rows to the next, where blocks with all of
        their columns lie one after the other.
    """

    kind: ws.TileType
    address: Value
    first_column: int = 0
    pitch_rows: int | None = None
    block_lines: int | None = None

    @property
    def pitch(self) -> int:
        """Lines from one 128-byte column of a shared tile to the next."""
        return self.kind.shape[0] if self.pitch_rows is None else self.pitch_rows

    def line(self, row: int) -> int:
        """Lines from the first row to another, in the first 128-byte column."""
        if self.block_lines is None:
            return row
        block, inner = divmod(row, self.pitch)
        return block * self.block_lines + inner

    def line_at(self, row: Value) -> Value:
        """i32: `line` of a run-time row; the rows of a block must be a power of two."""
        if self.block_lines is None:
            return row
        shift, mask = constant(self.pitch.bit_length() - 1), constant(self.pitch - 1)
        block = arith.ShRUIOp(row, shift).result
        return INT.add(INT.mul(block, self.block_lines), arith.AndIOp(row, mask).result)

    def start(self) -> Value:
        """i32: address of the first column; of a shared tile only if `first_column` is 0."""
        if not self.first_column:
            return self.address
        assert self.kind.space == "tensor"
        return INT.add(self.address, self.tensor_offset(0))

    def tensor_offset(self, column: int) -> int:
        """The offset of one of its columns from the address in tensor memory."""
        bits = ws.element_bits(self.kind.element)
        return tensor_offset(self.kind.shape[0], self.first_column + column, bits)


@dataclass(frozen=True)
class Slot:
    """A ring slot between acquire and commit, or wait and release.

    Attributes:
      ring: the ring's memory and barriers.
      memory: the slot's memory; None for a token.
      index: i32, number of the slot among the ring's stages of all instances.
      is_armed: whether `ws.acquire` expects the bytes of all copies at the full barrier; otherwise
        each copy expects its own bytes, and `ws.commit` arrives.
      arrives_with_copy: whether the only copy into it also arrives at the full barrier.
      start: pointer to the slot's memory, computed before `ws.acquire` waits, from which
        `pointer_in` counts.
      arrival: i64, the token of this thread's arrival, if an operation is `ws.behind` it.
    """

    ring: RingHandle
    memory: TileRef | None
    index: Value
    is_armed: bool = True
    arrives_with_copy: bool = False
    start: Value = None
    arrival: Value = None

    @property
    def tile(self) -> TileRef:
        """The tile of a slot that holds one."""
        assert self.memory is not None
        return self.memory


@dataclass(frozen=True)
class Fragment:
    """The elements of a fragment that one thread has.

    Attributes:
      kind: its type.
      layout: which elements a thread has.
      parts: vectors of these elements; see `values.py`.
    """

    kind: ws.FragmentType
    layout: Layout
    parts: tuple[Value, ...]


@dataclass(frozen=True)
class NextTile:
    """The next work tile of a CTA: `exists` (i1), and its coordinates x, y, z in the grid (i32)."""

    exists: Value
    coords: tuple[Value, ...]


@dataclass
class BranchedIteration:
    """A loop iteration whose waits and copies depend on one branch; see `branched_turns`.

    Attributes:
      taken: stage and phase parity of its slots, all taken before the branch.
      condition: the branch's condition; None before the branch.
      holds: the value of the condition on the path that is lowered.
      rows: row numbers that gather copies use, by the count of rows and the region that computes
        them.
    """

    taken: dict[Value, tuple[Value, Value]]
    condition: Value = None
    holds: bool = False
    rows: dict[Any, list[Value]] = field(default_factory=dict[Any, list[Value]])


@dataclass(frozen=True)
class CopyGroup:
    """Copies into a slot that their issuing threads wait for as one group.

    Attributes:
      slot: the slot.
      conditions: the enclosing branches and loops, innermost first.
    """

    slot: Value
    conditions: tuple[tuple[Value, int], ...]
