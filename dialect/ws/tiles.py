"""The loop over a CTA's work tiles, and work tiles taken over from CTAs that have not started.

With the order `clc` (cluster launch control) the grid is the tile space. A CTA that is done
continues with the work tile of one that has not started, which balances the load. One role requests
the next tile with `ws.claim`; the hardware writes the answer to a slot of a ring, and all roles,
also this one, read it with `ws.next_tile` at the end of each turn:

```
claim ──► answer(1) ──► every role: next_tile ──► turn 2
claim ──► answer(2) ──► every role: next_tile ──► no CTA is left: the loops end
```

With the order `ragged` the grid has about as many CTAs as the sequences have blocks, instead of as
many for each sequence as the longest one needs. The blocks, of `size` rows, of sequence b, of rows
ends[b] to ends[b + 1] - 1, have consecutive numbers from ends[b] / size + b (rounded down) on; they
always end before those of sequence b + 1 begin. Unused numbers, at most one per sequence and those
of rows before the first sequence, are blocks past the end of their sequence.
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import I32, ext, ir
from attn_mlir.dialect.orders import TILE_ORDERS

from .dialect import WS, TileType, fail
from .ring import AcquireOp, WaitOp

ANSWER_BYTES = 16  # PTX ISA, clusterlaunchcontrol.try_cancel
_ANSWER_WORDS = ANSWER_BYTES // 4
_PACKING = ("count", "rows", "size")


class TilesOp(WS.Operation, name="tiles", traits=[ir.NoTerminatorTrait]):
    """The loop over work tiles: runs the region for each work tile of this CTA.

    Operands:
      extents: one to three i32 extents of the tile space; the block arguments are coordinates in
        it.
      ends: none, or for `ragged` the ends of the sequences in a tensor: memref [count + 1] of i32.
      packing: with ends, three i32: `count` of sequences, `rows` of the tensor, `size` of a block.

    Attributes:
      order: `single`: the grid is the tile space, and every CTA has one tile. `last_first`: the
        same with the first coordinate counted from its end, where causal tiles are longest.
        `persistent`: one CTA per multiprocessor is launched, and CTA i of n takes tiles i, i + n, i
        + 2 n and so on, numbered with the first coordinate fastest. `clc`: as `last_first`, then
        with the tiles of CTAs that have not started, which its one `ws.next_tile` reads. `ragged`:
        every CTA has one tile of a space [blocks, any, parts x count], last blocks first, without
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
        if readers != (expected := int(order == "clc")):
            return fail(op, f"of order {order} expects {expected} ws.next_tile, got {readers}")
        return _check_packing(op, order)


def _check_packing(op: TilesOp, order: str) -> bool:
    """Whether there are ends and three scalars for the order that needs them; reports it if not."""
    is_ragged = order == "ragged"
    expected = (1, len(_PACKING)) if is_ragged else (0, 0)
    got = (len(op.ends), len(op.packing))
    if got != expected:
        words = (
            f"ends and packing by {', '.join(_PACKING)}" if is_ragged else "no ends and no packing"
        )
        return fail(op, f"of order {order} expects {words}, got {got[0]} and {got[1]} operands")
    if not is_ragged:
        return True
    if len(op.extents) != 3:
        return fail(op, f"of order ragged expects three extents, got {len(op.extents)}")
    kind = op.ends[0].type
    if not isinstance(kind, ir.MemRefType) or kind.rank != 1 or str(kind.element_type) != "i32":
        return fail(op, f"expects ends to be a memref of one dimension of i32, got {kind}")
    return True


def _check_answer(op: Any, opener: Any) -> bool:
    """Whether the slot has 16 bytes of shared memory and comes from `opener`; reports it if not."""
    tile = TileType(op.slot.type)
    words = str(tile.element) == "i32" and tile.shape == [_ANSWER_WORDS]
    if tile.space != "shared" or not words:
        return fail(op, f"expects a shared tile of {_ANSWER_WORDS} x i32, got {tile}")
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
      %slot = "ws.acquire"(%ring, %way)
        : (!ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>, i32)
          -> !ws.tile<vector<4xi32>, "shared">
      "ws.claim"(%slot) : (!ws.tile<vector<4xi32>, "shared">) -> ()
    """

    slot: ext.Operand[TileType]

    @staticmethod
    def verify_invariants(op: "ClaimOp") -> bool:
        """Checks for an acquired slot with the size of an answer."""
        return _check_answer(op, AcquireOp)


class NextTileOp(WS.Operation, name="next_tile"):
    """Continues the enclosing loop with the work tile of an answer, or ends it if there is none.

    Operands:
      slot: from `ws.wait`, a shared tile of 4 x i32.

    Memory effects: reads the slot. Hardware: sm_100.

    Example:
      "ws.tiles"(%blocks) ({
      ^bb0(%block: i32):
        %slot = "ws.wait"(%ring, %way)
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
        return _check_answer(op, WaitOp)
