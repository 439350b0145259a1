"""Rings that lie in the slots of another ring, and which of their slots overlap.

A lender (`ws.alloc_ring`) may have several borrowers (`ws.alloc_inside`), each from an offset of
its slots on. Borrowers may lie beside one another or over one another:

```
lender    s      |------------------ slot 0 -----------------|------- slot 1 ...
borrower  p      |---- 0 ----|                               |---- 1 ----|
borrower  dq                       |-------- 0 --------|           |-------- 1 ...
borrower  part   |---- 0 ----|           |---- 1 ----|       |---- 2 ----|      two parts of a slot
```

Nothing but handovers orders the use of overlapping slots. Whoever fills a slot has to know that all
slots which it overlaps are committed and released, in every CTA where it fills. Either rings have
empty barriers as any other, for their own slots, or none (`known_empty`).
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, NamedTuple

from attn_mlir.dialect._mlir import ext, ir
from attn_mlir.dialect.targets.limits import shared_tile_bytes, tensor_tile_columns

from .dialect import RingType, TileType, element_bits, fail, tile_bytes
from .ring import RING_ATTRIBUTES, AllocRingOp, check_declared

TILE_ALIGNMENT = 1024  # swizzled tiles: the pattern repeats every 8 lines of 128 bytes
VECTOR_ALIGNMENT = 16
OFFSET = "offset"


class Footprint(NamedTuple):
    """The memory of a slot.

    Attributes:
      extent: bytes of shared memory, whole alignments, or columns of tensor memory.
      alignment: of its begin, in the same unit.
    """

    extent: int
    alignment: int


def footprint(tile: TileType) -> Footprint:
    """The memory of a slot that holds a tile."""
    bits = element_bits(tile.element)
    if len(tile.shape) == 1:
        return _aligned(tile_bytes(tile), VECTOR_ALIGNMENT)
    rows, columns = tile.shape
    if tile.space == "tensor":
        return Footprint(tensor_tile_columns(rows, columns, bits), 1)
    return _aligned(shared_tile_bytes(rows, columns, bits, tile.line_bytes), TILE_ALIGNMENT)


def _aligned(extent: int, alignment: int) -> Footprint:
    return Footprint(-(-extent // alignment) * alignment, alignment)


class AllocInsideOp(AllocRingOp, name="alloc_inside"):
    """Declares a ring whose slots lie inside those of another ring, each in a slot or in a part of
    one.

    Several rings may lie there, beside one another or over one another. Only handovers order them:
    whoever fills a slot has to know that all slots which overlap it are committed and released, in
    every CTA where it fills, and the ring proof shows that it does.

    With n times the stages of the lender, slots n i to n i + n - 1 lie in slot i of the lender,
    which is n equal parts: what is in the place can be handed over part by part.

    Operands:
      lender: a ring with its own place, in the same memory, with as many instances, whose stages
        divide those of this ring. In tensor memory its slots have the same rows. Row r of both is
        the same lane, so a thread that has read its rows of one may write those of the other
        without waiting for other threads; in shared memory it has to hear of them.

    Attributes:
      label_name, producers, known_empty, full_at, empty_at: as in `ws.alloc_ring`.
      offset (optional): where a slot begins in that of the lender, or in its part: in bytes of
        shared memory, or columns of tensor memory; 0 where it is absent.

    Memory effects: declares barriers; the memory is the lender's. Hardware: mbarriers, sm_90 on;
    tensor memory needs sm_100.

    Example:
      %p = "ws.alloc_inside"(%s) {label_name = "p", known_empty, offset = 32 : i64}
        : (!ws.ring<!ws.tile<vector<128x64xf32>, "tensor">, 1, 2>)
          -> !ws.ring<!ws.tile<vector<128x64xbf16>, "tensor">, 1, 2>
    """

    lender: ext.Operand[RingType]

    OPTIONAL_ATTRIBUTES = MappingProxyType({**RING_ATTRIBUTES, OFFSET: ir.IntegerAttr})

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        """Checks for slots that fit into those of a lender, and lie as they have to."""
        if isinstance(op.lender.owner, AllocInsideOp):
            return fail(
                op, f"expects a lender with a place of its own, got ring {op.lender.owner.label}"
            )
        outer, inner = RingType(op.lender.type), RingType(op.ring.type)
        if outer.tile is None:
            return fail(op, f"expects a lender that has memory, got {outer}")
        if outer.instances != inner.instances or inner.stages % outer.stages:
            return fail(
                op,
                f"expects a multiple of the lender's {outer.stages} stages and as many instances, "
                f"{outer.instances}, got {inner.stages} and {inner.instances}",
            )
        misfit = _misfit(outer.tile, inner.tile, inner.stages // outer.stages, op.offset)
        if misfit:
            return fail(op, f"expects {misfit}, got {inner.slot_type} at {op.offset}")
        return check_declared(op)

    @property
    def declared_lender(self) -> AllocRingOp:
        """The declaration of the lender."""
        return self.lender.owner

    @property
    def parts(self) -> int:
        """Slots in one of the lender's."""
        inner, outer = RingType(self.ring.type), RingType(self.lender.type)
        return inner.stages // outer.stages

    @property
    def offset(self) -> int:
        """Where a slot begins in that of the lender, or in its part, in bytes or columns."""
        attributes = self.operation.attributes
        return ir.IntegerAttr(attributes[OFFSET]).value if OFFSET in attributes else 0


def _misfit(outer: TileType, inner: TileType | None, parts: int, offset: int) -> str:
    """Which slots fit into `parts` parts of a lender's, if these do not; else empty."""
    whole = footprint(outer)
    where = f"{outer}" if parts == 1 else f"{parts} parts of {outer}"
    if inner is None or inner.space != outer.space:
        return f"slots within {where}"
    if outer.space == "tensor" and inner.shape[0] != outer.shape[0]:
        return f"slots of {outer.shape[0]} rows within {where}"
    mine = footprint(inner)
    if whole.extent % parts or not 0 <= offset <= whole.extent // parts - mine.extent:
        return f"slots within {where}"
    if any(number % mine.alignment for number in (whole.alignment, whole.extent // parts, offset)):
        return f"slots at multiples of {mine.alignment} bytes within {where}"
    return ""


def borrowers(op: AllocRingOp) -> list[AllocInsideOp]:
    """The rings whose slots lie in those of a ring, in the order of their declaration."""
    owners = (use.owner for use in op.ring.uses)
    return [owner for owner in owners if isinstance(owner, AllocInsideOp)][::-1]


def sharing(op: AllocRingOp) -> list[AllocRingOp]:
    """The rings at the place of a ring, this one included: the lender and all borrowers."""
    lender = op.declared_lender if isinstance(op, AllocInsideOp) else op
    return [lender, *borrowers(lender)]


def overlaps(op: AllocRingOp) -> "Iterator[tuple[AllocRingOp, tuple[tuple[int, ...], ...]]]":
    """The other rings that a ring's slots overlap with, each with the numbers of its slots that
    overlap slot 0, 1, ... of this ring, in the same way.
    """
    mine = _slots(op)
    for other in sharing(op):
        theirs = _slots(other)
        overlapping = tuple(
            tuple(n for n, its in enumerate(theirs) if its.start < x.stop and x.start < its.stop)
            for x in mine
        )
        if other != op and any(overlapping):
            yield other, overlapping


def _slots(op: AllocRingOp) -> list[range]:
    """The bytes or columns of a ring's slots, counted from the first of the lender's instance."""
    is_inside = isinstance(op, AllocInsideOp)
    kind = RingType(op.ring.type)
    outer = RingType(op.lender.type).tile if is_inside else kind.tile
    if kind.tile is None or outer is None:  # tokens have no memory
        return []
    extent, step = footprint(kind.tile).extent, footprint(outer).extent
    step, first = (step // op.parts, op.offset) if is_inside else (step, 0)
    begins = (first + stage * step for stage in range(kind.stages))
    return [range(begin, begin + extent) for begin in begins]
