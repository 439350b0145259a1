"""Rings and buffers: declaration, the four steps of the handover, and plain access.

A ring's producer acquires a slot, fills it and commits it; each consumer waits for the slot, uses
it and releases it. `by` on commit and release names who completes the step:

* `threads`: every thread of the role arrives, its own reads and writes done;
* `mma`: the tensor core, when all products issued before by this thread are complete;
* `tma`: the copy engine; for commit, when the slot's bytes have landed, for release, when the
  stores that read the slot have read it.
"""

from typing import Any

from attn_mlir.dialect._mlir import I32, Pure, ext, ir

from .dialect import WS, BufferType, RingType, TileType, fail

AGENTS = ("threads", "mma", "tma")


class AllocRingOp(WS.Operation, name="alloc_ring"):
    """Declares a ring; after planning, `ws.plan` holds its place and its barriers."""

    label_name: ir.StringAttr
    ring: ext.Result[RingType]

    @property
    def label(self) -> str:
        """The ring's name in messages, maps and traces."""
        return self.label_name.value


class AllocBufferOp(WS.Operation, name="alloc_buffer"):
    """Declares tiles without barriers; the handover of some ring guards them."""

    label_name: ir.StringAttr
    buffer: ext.Result[BufferType]

    @property
    def label(self) -> str:
        """The buffer's name in messages and maps."""
        return self.label_name.value


class AtOp(WS.Operation, name="at", traits=[Pure]):
    """The tile of way `way` of a buffer."""

    buffer: ext.Operand[BufferType]
    way: ext.Operand[I32]
    tile: ext.Result[TileType]

    @staticmethod
    def verify_invariants(op: "AtOp") -> bool:
        """The result is the buffer's tile type."""
        expected = BufferType(op.buffer.type).tile
        if op.tile.type != expected:
            return fail(op, f"expects a result of type {expected}, got {op.tile.type}")
        return True


def _check_slot(op: Any) -> bool:
    expected = RingType(op.ring.type).tile
    if op.slot.type != expected:
        return fail(op, f"expects a slot of type {expected}, got {op.slot.type}")
    return True


def _check_handover(op: Any, opener: Any) -> bool:
    agent = op.by.value
    if agent not in AGENTS:
        return fail(op, f"expects by of {', '.join(AGENTS)}, got {agent}")
    if not isinstance(op.slot.owner, opener):
        return fail(op, f"expects a slot from {opener.OPERATION_NAME}")
    return True


class AcquireOp(WS.Operation, name="acquire"):
    """Producer: blocks until the next slot of way `way` is empty and returns it."""

    ring: ext.Operand[RingType]
    way: ext.Operand[I32]
    slot: ext.Result[TileType]

    @staticmethod
    def verify_invariants(op: "AcquireOp") -> bool:
        """The slot has the ring's tile type."""
        return _check_slot(op)


class CommitOp(WS.Operation, name="commit"):
    """Producer: the slot is full as soon as `by` has completed."""

    slot: ext.Operand[TileType]
    by: ir.StringAttr

    @staticmethod
    def verify_invariants(op: "CommitOp") -> bool:
        """The slot comes from `ws.acquire`; a known agent."""
        return _check_handover(op, AcquireOp)


class WaitOp(WS.Operation, name="wait"):
    """Consumer: blocks until the next slot of way `way` is full and returns it."""

    ring: ext.Operand[RingType]
    way: ext.Operand[I32]
    slot: ext.Result[TileType]

    @staticmethod
    def verify_invariants(op: "WaitOp") -> bool:
        """The slot has the ring's tile type."""
        return _check_slot(op)


class ReleaseOp(WS.Operation, name="release"):
    """Consumer: the slot may be filled again as soon as `by` has completed."""

    slot: ext.Operand[TileType]
    by: ir.StringAttr

    @staticmethod
    def verify_invariants(op: "ReleaseOp") -> bool:
        """The slot comes from `ws.wait`; a known agent."""
        return _check_handover(op, WaitOp)


class BarrierOp(WS.Operation, name="barrier"):
    """Named barrier: the threads of the role's group wait for one another."""
