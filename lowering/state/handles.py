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
    """One side of a ring, whose slots are taken in order."""

    def take(self) -> tuple[Value, Value]:
        """Stage and phase parity of the next slot, both i32; moves to the one behind it."""
        ...


class RingHandle(Protocol):
    """A ring at run time, as copies into its slots know it.

    Attributes:
      op: the operation that allocates it.
      full: the barriers of full slots, those of all ways one behind the other.
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
      block_lines: lines from one block of `pitch_rows` rows to the next, where blocks lie one
        behind the other, each with all of its columns.
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
        """i32: the same for a row that is computed; of blocks, whose rows are a power of two."""
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
        """What one of its columns adds to the address in tensor memory."""
        bits = ws.element_bits(self.kind.element)
        return tensor_offset(self.kind.shape[0], self.first_column + column, bits)


@dataclass(frozen=True)
class Slot:
    """A ring slot between acquire and commit, or wait and release.

    Attributes:
      ring: the ring's memory and barriers.
      place: the slot's memory; None for a token.
      index: i32, number of the slot among the ring's stages of all ways.
      is_armed: whether the full barrier was told at `ws.acquire` how many bytes all copies bring;
        otherwise each copy announces its own bytes, and `ws.commit` arrives.
      tells_once: whether the copy into it, the only one, also arrives at the full barrier.
      start: pointer to the slot's memory that is there before `ws.acquire` waits, where
        `pointer_in` counts from it.
      arrival: i64, what an arrival of this thread has returned, where something is `ws.behind` it.
    """

    ring: RingHandle
    place: TileRef | None
    index: Value
    is_armed: bool = True
    tells_once: bool = False
    start: Value = None
    arrival: Value = None

    @property
    def tile(self) -> TileRef:
        """The tile of a slot that holds one."""
        assert self.place is not None
        return self.place


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
class Turn:
    """A turn of a loop of which one branch decides.

    Attributes:
      taken: stage and phase parity of slots, which all have been taken before.
      condition: what the branch asks; None in front of it.
      holds: the way that is lowered.
      rows: of the tensor that copies gather, by what chooses them.
    """

    taken: dict[Value, tuple[Value, Value]]
    condition: Value = None
    holds: bool = False
    rows: dict[Any, list[Value]] = field(default_factory=dict[Any, list[Value]])


@dataclass(frozen=True)
class CopyGroup:
    """Copies into a slot that the threads which issued them wait for together.

    Attributes:
      slot: the slot.
      conditions: branches and loops in which they are issued, from the inside out.
    """

    slot: Value
    conditions: tuple[tuple[Value, int], ...]
