"""The work tiles of a CTA: the tile-scheduler loop, and tiles taken over from CTAs that never start.

With the order `clc` (cluster launch control) the grid is the tile space, and a CTA that is done
goes on with the tile of one that has not started, so that the machine balances the load by itself.
One role asks for the next tile with `ws.claim`; the hardware's answer travels through a ring to
all roles, itself included, which read it with `ws.next_tile` at the end of each turn:

```
claim ──► answer(1) ──► every role: next_tile ──► turn 2
claim ──► answer(2) ──► every role: next_tile ──► no CTA is left: the loops end
```

With the order `ragged` there are CTAs for the blocks that sequences have, and not for as many as the
longest one would need. Sequence b of rows ends[b] .. ends[b + 1] has its blocks of `size` rows at the
numbers from ends[b] / size + b on (rounded down), one after the other; so many numbers lie before
those of sequence b + 1 at least. What is left over, at most one number per sequence and those of
rows in front of the first, is a block past the end of its sequence.
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
    """The tile-scheduler loop: the region runs for each work tile of this CTA.

    Operands:
      extents: one to three i32 sizes of the tile space; block arguments are the coordinates.
      ends: none, or for `ragged` where the sequences of a tensor end: memref [count + 1] of i32.
      packing: with ends, i32 numbers: `count` of sequences, `rows` of the tensor, `size` of a block.

    Attributes:
      order: `single` gives every CTA one tile and makes the grid the tile space; `last_first` does
        so with the first coordinate counted from its end, where causal tiles are longest;
        `persistent` launches one CTA per multiprocessor, and CTA i of n takes tiles i, i + n,
        i + 2 n and so on, counted with the first coordinate fastest; `clc` begins as `last_first` and goes on with
        the tiles of CTAs that have not started, as its one `ws.next_tile` says; `ragged` gives every
        CTA one tile of a space [blocks, any, parts x count], last blocks first, of which blocks past
        the end of their sequence are left out. Wrong ends give wrong tiles, none outside the space's
        last two extents, and no block below 0.

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
        """One block with an i32 argument per extent; a known order, and what it goes by."""
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
    """Ends and three numbers, for the one order that needs them, of a space with sequences."""
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
    """The slot is 16 bytes of shared memory and comes from `opener`."""
    tile = TileType(op.slot.type)
    words = str(tile.element) == "i32" and tile.shape == [_ANSWER_WORDS]
    if tile.space != "shared" or not words:
        return fail(op, f"expects a shared tile of {_ANSWER_WORDS} x i32, got {tile}")
    if not isinstance(op.slot.owner, opener):
        return fail(op, f"expects a slot from {opener.OPERATION_NAME}")
    return True


class ClaimOp(WS.Operation, name="claim"):
    """Asks for the work tile of a CTA that has not started, which then never starts.

    The copy engine writes the answer to the slot: commit it by `copy_engine`. Once an answer
    says that no CTA is left, a further claim is an error of the kernel.

    Operands:
      slot: from `ws.acquire`, a shared tile of 4 x i32.

    Memory effects: takes a CTA of the launch, writes the slot. Hardware: sm_100.

    Example:
      %slot = "ws.acquire"(%ring, %way)
        : (!ws.ring<!ws.tile<vector<4xi32>, "shared">, 2, 1>, i32)
          -> !ws.tile<vector<4xi32>, "shared">
      "ws.claim"(%slot) : (!ws.tile<vector<4xi32>, "shared">) -> ()
    """

    slot: ext.Operand[TileType]

    @staticmethod
    def verify_invariants(op: "ClaimOp") -> bool:
        """A slot for an answer that this role fills."""
        return _check_answer(op, AcquireOp)


class NextTileOp(WS.Operation, name="next_tile"):
    """The loop around goes on with the tile that an answer names, or ends if there is none.

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
        """A slot with an answer, directly in a loop over work tiles."""
        parent = op.operation.parent
        if parent is None or not isinstance(parent.opview, TilesOp):
            return fail(op, "expects ws.tiles as parent")
        return _check_answer(op, WaitOp)
