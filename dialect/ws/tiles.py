"""The loop over a CTA's work tiles, and work tiles that CTAs ask for as they run.

With the order `clc` (cluster launch control) the grid is the tile space. A CTA that is done
continues with the work tile of one that has not started, which balances the load. One role requests
the next tile with `ws.claim`; the hardware writes the answer to a slot of a ring, and all roles,
also this one, read it with `ws.next_tile` at the end of each turn:

```
claim ──► answer(1) ──► every role: next_tile ──► turn 2
claim ──► answer(2) ──► every role: next_tile ──► no CTA is left: the loops end
```

With the order `counter` there are as many CTAs as multiprocessors, and one role draws the next tile
with `ws.draw` from a counter in global memory; its answers travel in the same way. Tiles are
numbered in sections of so many places along all but the first coordinate: places first, then the
first coordinate from its end down, then the next section. With blocks of queries along the first
and heads along the others the long tiles of a causal mask come first, and the keys of a section's
heads stay in the L2 cache while its tiles are drawn.

With the order `ragged` the grid has about as many CTAs as the sequences have blocks, instead of as
many for each sequence as the longest one needs. The blocks, of `size` rows, of sequence b, of rows
ends[b] to ends[b + 1] - 1, have consecutive numbers from ends[b] / size + b (rounded down) on; they
always end before those of sequence b + 1 begin. Unused numbers, at most one per sequence and those
of rows before the first sequence, are blocks past the end of their sequence.
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import I32, ext, ir
from attn_mlir.dialect.orders import ANSWERED_ORDERS, TILE_ORDERS

from .dialect import WS, TileType, fail
from .ring import AcquireOp, WaitOp

RESPONSE_BYTES = 16  # PTX ISA, clusterlaunchcontrol.try_cancel
RESPONSE_WORDS = RESPONSE_BYTES // 4
_PACKING = {"ragged": ("count", "rows", "size"), "counter": ("section",)}


class TilesOp(WS.Operation, name="tiles", traits=[ir.NoTerminatorTrait]):
    """The loop over work tiles: runs the region for each work tile of this CTA.

    Operands:
      extents: one to three i32 extents of the tile space; the block arguments are coordinates in
        it.
      ends: none, or for `ragged` the ends of the sequences in a tensor: memref [count + 1] of i32.
      packing: none, or i32 numbers: for `ragged` the `count` of sequences, the `rows` of the tensor
        and the `size` of a block; for `counter` the places of a `section`.

    Attributes:
      order: `single`: the grid is the tile space, and every CTA has one tile. `last_first`: the
        same with the first coordinate counted from its end, where causal tiles are longest.
        `persistent`: one CTA per multiprocessor is launched, and CTA i of n takes tiles i, i + n, i
        + 2 n and so on, numbered with the first coordinate fastest. `clc`: as `last_first`, then
        with the tiles of CTAs that have not started, which its one `ws.next_tile` reads. `counter`:
        launched as `persistent`, and CTA i goes on from tile i with those that its one
        `ws.next_tile` reads. `ragged`: every CTA has one tile of a space [blocks, any, parts x
          count], last blocks first, without
        blocks past the end of their sequence. Wrong ends give wrong tiles, but never coordinates
        outside the last two extents, or a block below 0.

    Memory effects: those of its region; `ragged` reads the ends. Hardware: any; `clc` needs sm_100.

    Example:
      "ws.tiles"(%blocks, %heads) ({
      ^bb0(%block: i32, %head: i32):
        "ws.barrier"() : () -> ()
      }) {order = "single", operandSegmentSizes = array<i32: 2, 0, 0>} : (i32, i32) -> ()
    """

    extents: Sequence[ext.Operand[I32]]
    ends: Sequence[ext.Operand[Any]]
    packing: Sequence[ext.Operand[I32]]
    order: ir.StringAttr
    body: ext.Region

    @staticmethod
    def verify_region_invariants(op: "TilesOp") -> bool:
        """Checks for one block with an i32 argument per extent, a known order, and its operands."""
        extents = len(op.extents)
        if not 1 <= extents <= 3:
            return fail(op, f"expects one to three extents, got {extents}")
        blocks = op.body.blocks
        if len(blocks) != 1 or [str(a.type) for a in blocks[0].arguments] != ["i32"] * extents:
            return fail(op, f"expects one block with {extents} i32 arguments")
        order = op.order.value
        if order not in TILE_ORDERS:
            return fail(op, f"expects order of {', '.join(TILE_ORDERS)}, got {order}")
        readers = sum(isinstance(inner, NextTileOp) for inner in blocks[0].operations)
        if readers != (expected := int(order in ANSWERED_ORDERS)):
            return fail(op, f"of order {order} expects {expected} ws.next_tile, got {readers}")
        return _check_packing(op, order)


def _check_packing(op: TilesOp, order: str) -> bool:
    """Whether there are the operands that the order needs beside the extents; reports it if not."""
    names = _PACKING.get(order, ())
    expected = (int(order == "ragged"), len(names))
    got = (len(op.ends), len(op.packing))
    if got != expected:
        ends = "ends" if expected[0] else "no ends"
        packing = f"packing by {', '.join(names)}" if names else "no packing"
        return fail(
            op,
            f"of order {order} expects {ends} and {packing}, got {got[0]} and {got[1]} operands",
        )
    if order != "ragged":
        return True
    if len(op.extents) != 3:
        return fail(op, f"of order ragged expects three extents, got {len(op.extents)}")
    kind = op.ends[0].type
    if not isinstance(kind, ir.MemRefType) or kind.rank != 1 or str(kind.element_type) != "i32":
        return fail(op, f"expects ends to be a memref of one dimension of i32, got {kind}")
    return True


def _check_response(op: Any, opener: Any) -> bool:
    """Whether the slot has 16 bytes of shared memory and comes from `opener`; reports it if not."""
    tile = TileType(op.slot.type)
    words = str(tile.element) == "i32" and tile.shape == [RESPONSE_WORDS]
    if tile.space != "shared" or not words:
        return fail(op, f"expects a shared tile of {RESPONSE_WORDS} x i32, got {tile}")
    if not isinstance(op.slot.owner, opener):
        return fail(op, f"expects a slot from {opener.OPERATION_NAME}")
    return True


class ClaimOp(WS.Operation, name="claim"):
    """Requests the work tile of a CTA that has not started, which then never starts.

    The hardware writes the answer to the slot, as the copy engine would: commit it by
    `copy_engine`. After an answer that no CTA is left, a further claim is an error of the kernel.

    Operands:
      slot: from `ws.acquire`, a shared tile of 4 x i32.

    Memory effects: cancels a CTA of the launch, writes the slot asynchronously. Hardware: sm_100.

    Example:
      %slot = "ws.acquire"(%ring, %instance)
        : (!ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>, i32)
          -> !ws.tile<vector<4xi32>, "shared">
      "ws.claim"(%slot) : (!ws.tile<vector<4xi32>, "shared">) -> ()
    """

    slot: ext.Operand[TileType]

    @staticmethod
    def verify_invariants(op: "ClaimOp") -> bool:
        """Checks for an acquired slot with the size of an answer."""
        return _check_response(op, AcquireOp)


class DrawOp(WS.Operation, name="draw"):
    """Draws the next work tile of this CTA from a counter in global memory.

    The thread writes the answer to the slot: commit it by `threads`. A CTA draws once for each tile
    that it works on: its last draw finds that none is left. So there are as many draws in a launch
    as tiles, however many CTAs there are, and the last of them makes the counter 0 again: as it has
    to be before the first launch, it is before each.

    Operands:
      slot: from `ws.acquire`, a shared tile of 4 x i32.
      counter: tensor argument of role `inout`, [1] of i32, which no other launch uses meanwhile.

    Memory effects: reads and writes the counter, writes the slot. Hardware: any.

    Example:
      "ws.tiles"(%blocks, %section) ({
      ^bb0(%block: i32):
        %ask = "ws.acquire"(%ring, %instance)
          : (!ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>, i32)
            -> !ws.tile<vector<4xi32>, "shared">
        "ws.draw"(%ask, %counter) : (!ws.tile<vector<4xi32>, "shared">, memref<1xi32>) -> ()
        "ws.commit"(%ask) {by = "threads"} : (!ws.tile<vector<4xi32>, "shared">) -> ()
        %slot = "ws.wait"(%ring, %instance)
          : (!ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>, i32)
            -> !ws.tile<vector<4xi32>, "shared">
        "ws.next_tile"(%slot) : (!ws.tile<vector<4xi32>, "shared">) -> ()
      }) {order = "counter", operandSegmentSizes = array<i32: 1, 0, 1>} : (i32, i32) -> ()
    """

    slot: ext.Operand[TileType]
    counter: ext.Operand[Any]

    @property
    def loop(self) -> TilesOp:
        """The loop whose next tile is drawn."""
        parent = self.operation.parent
        assert parent is not None and isinstance(parent.opview, TilesOp)
        return parent.opview

    @staticmethod
    def verify_invariants(op: "DrawOp") -> bool:
        """A slot for an answer, a counter, directly in a loop of the order `counter`."""
        parent = op.operation.parent
        loop = None if parent is None else parent.opview
        if not isinstance(loop, TilesOp) or loop.order.value != "counter":
            return fail(op, "expects ws.tiles of order counter as parent")
        if str(op.counter.type) != "memref<1xi32>":
            return fail(op, f"expects a counter of type memref<1xi32>, got {op.counter.type}")
        return _check_response(op, AcquireOp)


class NextTileOp(WS.Operation, name="next_tile"):
    """Continues the enclosing loop with the work tile of an answer, or ends it if there is none.

    Operands:
      slot: from `ws.wait`, a shared tile of 4 x i32.

    Memory effects: reads the slot. Hardware: that of what fills it.

    Example:
      "ws.tiles"(%blocks) ({
      ^bb0(%block: i32):
        %slot = "ws.wait"(%ring, %instance)
          : (!ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>, i32)
            -> !ws.tile<vector<4xi32>, "shared">
        "ws.next_tile"(%slot) : (!ws.tile<vector<4xi32>, "shared">) -> ()
      }) {order = "clc", operandSegmentSizes = array<i32: 1, 0, 0>} : (i32) -> ()
    """

    slot: ext.Operand[TileType]

    @staticmethod
    def verify_invariants(op: "NextTileOp") -> bool:
        """Checks for a slot with an answer, directly in a loop over work tiles."""
        parent = op.operation.parent
        if parent is None or not isinstance(parent.opview, TilesOp):
            return fail(op, "expects ws.tiles as parent")
        return _check_response(op, WaitOp)
