"""Prefetches to the L2 cache: hints, which change nothing that is read.

Memory is what the caches agree on, so that a prefetch before `ws.grid_dependency_wait` is no
access: what an earlier kernel writes meanwhile is in the L2 cache, or replaces what is there.
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import I32, Pure, ext, ir

from .dialect import WS, TileType, fail
from .memory import DIMS, check_global


class CtaOp(WS.Operation, name="cta", traits=[Pure]):
    """The number of this CTA along the grid's first dimension.

    Memory effects: none. Hardware: any.

    Example:
      %number = "ws.cta"() : () -> i32
    """

    number: ext.Result[I32] = ext.infer_result()


class PrefetchLineOp(WS.Operation, name="prefetch_line"):
    """Asks for elements that follow one another along a tensor's last dimension.

    Operands:
      source: tensor argument.
      coords: i32 coordinates of the first element, one per tensor dimension, within the tensor.
      count: i32, how many, at least 1 and within the tensor.

    Memory effects: none. Hardware: sm_90 on. For one thread.

    Example:
      "ws.prefetch_line"(%table, %row, %zero, %columns) {operandSegmentSizes = array<i32: 1, 2, 1>}
        : (memref<?x?xi32>, i32, i32, i32) -> ()
    """

    source: ext.Operand[Any]
    coords: Sequence[ext.Operand[I32]]
    count: ext.Operand[I32]

    def verify_invariants(self) -> bool:
        """Checks for a memref with one dimension per coordinate."""
        if not isinstance(self.source.type, ir.MemRefType):
            return fail(self, f"expects a memref, got {self.source.type}")
        if len(self.coords) != (rank := ir.MemRefType(self.source.type).rank):
            return fail(self, f"expects {rank} coordinates, got {len(self.coords)}")
        return True


class PrefetchBoxOp(WS.Operation, name="prefetch_box"):
    """Asks for what a `ws.copy_in` to a tile would read.

    Operands:
      source: tensor argument.
      coords: i32 start coordinates, one per tensor dimension.

    Attributes:
      dims: as in `ws.copy_in`.
      tile: type of the tile.

    Memory effects: none. Hardware: sm_90 on. For one thread.

    Example:
      "ws.prefetch_box"(%k, %batch, %row, %head, %column)
        {dims = array<i32: 1, 3>, operandSegmentSizes = array<i32: 1, 4>,
         tile = !ws.tile<vector<128x64xbf16>, "shared">}
        : (memref<?x?x4x64xbf16>, i32, i32, i32, i32) -> ()
    """

    source: ext.Operand[Any]
    coords: Sequence[ext.Operand[I32]]
    dims: Any
    tile: ir.TypeAttr

    ATTRIBUTE_CLASSES = DIMS

    @property
    def kind(self) -> TileType:
        """The type of the tile."""
        return TileType(self.tile.value)

    @staticmethod
    def verify_invariants(op: "PrefetchBoxOp") -> bool:
        """Checks that coordinates and dims fit the tensor."""
        return check_global(op, op.source, op.kind.shape, op.kind.element)
