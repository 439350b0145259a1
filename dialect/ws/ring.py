"""Rings and buffers: their declarations, the four steps of a handover, and named barriers.

A ring's producer acquires a slot, fills it and commits it; each consumer waits for the slot, uses
it and releases it. `by` on commit and release names the agent that completes the step:

* `threads`: every thread of the role arrives, after its own reads and writes, and copies of rows;
* `warps`: as `threads`, but the threads of a warp synchronise, and one of them arrives for all;
* `tensor_core`: when all products that this thread issued before are complete;
* `copy_engine`: for commit, when the slot's bytes have arrived; for release, when the copies out of
  the slot have read it;
* `thread_copies`: for commit only, when the copies (`ws.copy_rows`) that every thread of the role
  issued before are complete.

Several producers may fill a slot together: each of them acquires and commits every slot, and the
slot is full when all have committed. The ring's attribute `producers` lists the agents of their
commits.

A ring of type `!ws.ring<none, ..>` holds no data. Its slots are tokens, whose handover only orders
roles: what a role does after its wait comes after what another did before its commit. Threads and
the tensor core hand tokens over.

A ring may lie in the slots of another one (`ws.alloc_inside`, `places`). The ring proof shows that
slots which overlap are never in use at once.

A ring with `known_empty` has no empty barriers: its producers hear by handovers of other rings that
a slot has been released, and `ws.acquire` does not block. The ring proof shows that they do. So it
is mostly with rings that share a place, where a full slot of one says that a slot of another one is
no longer in use.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import I32, Pure, ext, ir

from .cluster import Targets, check_targets, cta_count, targets
from .dialect import WS, BufferType, FragmentType, RingType, TileType, fail

AGENTS = ("threads", "warps", "tensor_core", "copy_engine", "thread_copies")
_RELEASING = AGENTS[:4]
_PASSING = AGENTS[:3]  # agents that can commit tokens


KNOWN_EMPTY = "known_empty"
RING_ATTRIBUTES = MappingProxyType(
    {
        "producers": ir.ArrayAttr,
        KNOWN_EMPTY: ir.UnitAttr,
        "full_at": ir.ArrayAttr,
        "empty_at": ir.ArrayAttr,
    }
)


class AllocRingOp(WS.Operation, name="alloc_ring"):
    """Declares a ring; after planning, its attribute `ws.plan` has the offsets of slots and
    barriers.

    Attributes:
      label_name: the ring's name in messages, maps and traces.
      producers: the agents that commit a slot together, in any order, one for each role (or group
        of one) that does; needed if there are several.
      known_empty (optional): whoever acquires a slot knows by handovers of other rings that it has
        been released, which the ring proof shows; there are no empty barriers, and `ws.acquire`
        does not block.
      full_at, empty_at (optional): in a cluster, for each rank the CTAs at whose full barriers its
        commits arrive, and at whose empty barriers its releases; by default its own.

    Memory effects: declares storage and barriers. Hardware: mbarriers, sm_90 on.

    Example:
      %ring = "ws.alloc_ring"() {label_name = "kv"}
        : () -> !ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 3, 1>
    """

    label_name: ir.StringAttr
    ring: ext.Result[RingType]

    OPTIONAL_ATTRIBUTES = RING_ATTRIBUTES

    @staticmethod
    def verify_invariants(op: "AllocRingOp") -> bool:
        """Checks for known agents, and ranks of the cluster."""
        return check_declared(op)

    @property
    def label(self) -> str:
        """The ring's name in messages, maps and traces."""
        return self.label_name.value

    @property
    def full_at(self) -> Targets:
        """For each rank, the CTAs at whose full barriers its commits arrive."""
        return targets(self, "full_at")

    @property
    def empty_at(self) -> Targets:
        """For each rank, the CTAs at whose empty barriers its releases arrive."""
        return targets(self, "empty_at")

    @property
    def producers(self) -> tuple[str, ...] | None:
        """The agents that commit a slot together; None if there is a single one."""
        attributes = self.operation.attributes
        if "producers" not in attributes:
            return None
        return tuple(ir.StringAttr(agent).value for agent in ir.ArrayAttr(attributes["producers"]))

    @property
    def is_known_empty(self) -> bool:
        """Whether producers know by other rings that a slot has been released."""
        return KNOWN_EMPTY in self.operation.attributes


def check_declared(op: AllocRingOp) -> bool:
    """Whether the attributes of a ring agree; reports it if not."""
    if not check_targets(op, "full_at", "empty_at"):
        return False
    if KNOWN_EMPTY in op.attributes and "empty_at" in op.attributes:
        return fail(op, f"expects no empty_at of a ring without empty barriers ({KNOWN_EMPTY})")
    if "producers" not in op.attributes:
        return True
    got = list(ir.ArrayAttr(op.attributes["producers"]))
    names = [agent.value if isinstance(agent, ir.StringAttr) else agent for agent in got]
    if not names or any(name not in AGENTS for name in names):
        return fail(op, f"expects producers of {', '.join(AGENTS)}, got {names}")
    return True


class AllocBufferOp(WS.Operation, name="alloc_buffer"):
    """Declares tiles without barriers, which the handover of some ring guards.

    Tiles in tensor memory are guarded by a ring in tensor memory or by tokens.

    Attributes:
      label_name: the buffer's name in messages and maps.

    Memory effects: declares storage. Hardware: that of the tile's space.

    Example:
      %o = "ws.alloc_buffer"() {label_name = "o"}
        : () -> !ws.buffer<!ws.tile<vector<128x64xf32>, "tensor">, 2>
    """

    label_name: ir.StringAttr
    buffer: ext.Result[BufferType]

    @property
    def label(self) -> str:
        """The buffer's name in messages and maps."""
        return self.label_name.value


class AtOp(WS.Operation, name="at", traits=[Pure]):
    """One of the tiles of a buffer.

    Operands:
      buffer: the tiles.
      instance: i32, the number of the tile.

    Memory effects: none. Hardware: that of the tile's space.

    Example:
      %o = "ws.at"(%buffer, %instance)
        : (!ws.buffer<!ws.tile<vector<128x64xf32>, "tensor">, 2>, i32)
          -> !ws.tile<vector<128x64xf32>, "tensor">
    """

    buffer: ext.Operand[BufferType]
    instance: ext.Operand[I32]
    tile: ext.Result[TileType]

    @staticmethod
    def verify_invariants(op: "AtOp") -> bool:
        """Checks that the result has the buffer's tile type."""
        expected = BufferType(op.buffer.type).tile
        if op.tile.type != expected:
            return fail(op, f"expects a result of type {expected}, got {op.tile.type}")
        return True


def _check_slot(op: Any) -> bool:
    expected = RingType(op.ring.type).slot_type
    if op.slot.type != expected:
        return fail(op, f"expects a slot of type {expected}, got {op.slot.type}")
    return True


def _check_handover(op: Any, opener: Any, allowed: Sequence[str]) -> bool:
    agent = op.by.value
    if agent not in allowed:
        return fail(op, f"expects by of {', '.join(allowed)}, got {agent}")
    if not isinstance(op.slot.owner, opener):
        return fail(op, f"expects a slot from {opener.OPERATION_NAME}")
    return True


class AcquireOp(WS.Operation, name="acquire"):
    """Producer: blocks until the next slot of an instance is empty and returns it.

    For rings without empty barriers it does not block, since the role has waited for another ring.

    Operands:
      ring: the ring.
      instance: i32, the number of the ring's instance.

    Memory effects: waits for an mbarrier, takes a slot. Hardware: mbarriers, sm_90 on.

    Example:
      %slot = "ws.acquire"(%ring, %instance)
        : (!ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 3, 1>, i32)
          -> !ws.tile<vector<128x64xbf16>, "shared">
    """

    ring: ext.Operand[RingType]
    instance: ext.Operand[I32]
    slot: ext.Result[TileType | ir.NoneType]

    @staticmethod
    def verify_invariants(op: "AcquireOp") -> bool:
        """Checks that the slot has the ring's slot type."""
        return _check_slot(op)


class CommitOp(WS.Operation, name="commit"):
    """Producer: the slot is full as soon as the agent `by` has completed the step.

    Operands:
      slot: from `ws.acquire`.

    Attributes:
      by: `threads`, `warps`, `tensor_core`, `copy_engine` or `thread_copies`, see the module.

    Memory effects: publishes what was written to the slot. Hardware: mbarriers, sm_90 on;
    `tensor_core` needs sm_100.

    Example:
      %slot = "ws.acquire"(%ring, %instance)
        : (!ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 3, 1>, i32)
          -> !ws.tile<vector<128x64xbf16>, "shared">
      "ws.commit"(%slot) {by = "copy_engine"} : (!ws.tile<vector<128x64xbf16>, "shared">) -> ()
    """

    slot: ext.Operand[TileType | ir.NoneType]
    by: ir.StringAttr

    @staticmethod
    def verify_invariants(op: "CommitOp") -> bool:
        """Checks that the slot comes from `ws.acquire` and that the agent can fill it."""
        is_token = isinstance(op.slot.type, ir.NoneType)
        return _check_handover(op, AcquireOp, _PASSING if is_token else AGENTS)


class WaitOp(WS.Operation, name="wait"):
    """Consumer: blocks until the next slot of an instance is full and returns it.

    Operands:
      ring: the ring.
      instance: i32, the number of the ring's instance.

    Memory effects: waits for an mbarrier; makes the producer's writes visible. Hardware: mbarriers,
    sm_90 on.

    Example:
      %slot = "ws.wait"(%ring, %instance)
        : (!ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 3, 1>, i32)
          -> !ws.tile<vector<128x64xbf16>, "shared">
    """

    ring: ext.Operand[RingType]
    instance: ext.Operand[I32]
    slot: ext.Result[TileType | ir.NoneType]

    @staticmethod
    def verify_invariants(op: "WaitOp") -> bool:
        """Checks that the slot has the ring's slot type."""
        return _check_slot(op)


class ReleaseOp(WS.Operation, name="release"):
    """Consumer: the slot may be filled again as soon as the agent `by` has completed the step.

    Operands:
      slot: from `ws.wait`.

    Attributes:
      by: `threads`, `warps`, `tensor_core` or `copy_engine`, see the module.

    Memory effects: ends the use of the slot. Hardware: mbarriers, sm_90 on; `tensor_core` needs
    sm_100.

    Example:
      %slot = "ws.wait"(%ring, %instance)
        : (!ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 3, 1>, i32)
          -> !ws.tile<vector<128x64xbf16>, "shared">
      "ws.release"(%slot) {by = "tensor_core"} : (!ws.tile<vector<128x64xbf16>, "shared">) -> ()
    """

    slot: ext.Operand[TileType | ir.NoneType]
    by: ir.StringAttr

    @staticmethod
    def verify_invariants(op: "ReleaseOp") -> bool:
        """Checks that the slot comes from `ws.wait` and that the agent can have used it."""
        return _check_handover(op, WaitOp, _RELEASING)


class BehindOp(WS.Operation, name="behind"):
    """A fragment that is there no sooner than a handover before it, and so nothing that is made of
    it.

    An assembler computes what takes long as soon as it can: the exponentials of a whole row before
    the first of them are handed over. The operands of later ones wait by this for the arrival.

    Operands:
      fragment: [R], f32.
      slot: from `ws.acquire`, of a commit by `threads` before it in the same block. Not in
        clusters.

    Results:
      behind: the fragment.

    Memory effects: none, but it stays between the operations around it. Hardware: mbarriers, sm_90
    on.

    Example:
      %slot = "ws.acquire"(%ring, %instance) : (!ws.ring<none, 1, 2>, i32) -> none
      "ws.commit"(%slot) {by = "threads"} : (none) -> ()
      %later = "ws.behind"(%offset, %slot)
        : (!ws.frag<vector<128xf32>>, none) -> !ws.frag<vector<128xf32>>
    """

    fragment: ext.Operand[FragmentType]
    slot: ext.Operand[TileType | ir.NoneType]
    behind: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "BehindOp") -> bool:
        """One type of rank 1 and f32, and a slot that threads have committed."""
        kind = FragmentType(op.fragment.type)
        if len(kind.shape) != 1 or not isinstance(kind.element, ir.F32Type):
            return fail(op, f"expects a fragment of rank 1 and f32, got {kind}")
        if op.behind.type != op.fragment.type:
            return fail(op, f"expects a result of type {kind}, got {op.behind.type}")
        if (count := cta_count(op)) > 1:
            return fail(op, f"expects a kernel without clusters, got one of {count} CTAs")
        if not any(_commits_before(use.owner, op) for use in op.slot.uses):
            return fail(op, "expects a slot that threads have committed before, in the same block")
        return True


def _commits_before(commit: Any, op: BehindOp) -> bool:
    """Whether an operation is a commit by threads that comes before another one in its block."""
    if not isinstance(commit, CommitOp) or commit.by.value != "threads":
        return False
    one: Any = commit.operation
    return one.block == op.operation.block and one.is_before_in_block(op.operation)


class BarrierOp(WS.Operation, name="barrier"):
    """Named barrier: the threads of the role's group wait for one another.

    Memory effects: orders the threads' accesses to shared memory. Hardware: any.

    Example:
      "ws.barrier"() : () -> ()
    """
