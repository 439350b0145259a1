"""Fragments to and from tensors: what threads themselves read and write in global memory."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import I32, ext

from .dialect import WS, FragmentType
from .memory import DIMS, check_global


class LoadGlobalOp(WS.Operation, name="load_global"):
    """Threads read a fragment from a tensor, which other CTAs may have written; outside it, zeros.

    What another CTA has written is there after `ws.arrive_last` has said that it has arrived, what
    an earlier kernel has written after `ws.grid_dependency_wait` where launches overlap.

    Operands:
      source: tensor argument.
      coords: i32 start coordinates, one per tensor dimension.

    Attributes:
      dims: as of `ws.copy_in`; for a fragment [R] the row dimension alone.

    Results:
      fragment: [R, C] or [R].

    Memory effects: reads the tensor. Hardware: any.

    Example:
      %part = "ws.load_global"(%sums, %number, %row, %column)
        {dims = array<i32: 1, 2>, operandSegmentSizes = array<i32: 1, 3>}
        : (memref<?x?x?xf32>, i32, i32, i32) -> !ws.frag<vector<16x64xf32>>
    """

    source: ext.Operand[Any]
    coords: Sequence[ext.Operand[I32]]
    dims: Any
    fragment: ext.Result[FragmentType]

    ATTRIBUTE_CLASSES = DIMS

    @staticmethod
    def verify_invariants(op: "LoadGlobalOp") -> bool:
        """Coordinates and dims fit the tensor."""
        fragment = FragmentType(op.fragment.type)
        return check_global(op, op.source, fragment.shape, fragment.element)


class StoreGlobalOp(WS.Operation, name="store_global"):
    """Threads write a fragment to a tensor, rows outside the tensor left out.

    Operands:
      fragment: [R, C] or [R].
      target: tensor argument.
      coords: i32 start coordinates, one per tensor dimension.

    Attributes:
      dims: as of `ws.copy_in`; for a fragment [R] the row dimensions alone.

    Memory effects: writes the tensor. Hardware: any.

    Example:
      "ws.store_global"(%lse, %tensor, %batch, %head, %row)
        {dims = array<i32: 2>, operandSegmentSizes = array<i32: 1, 1, 3>}
        : (!ws.frag<vector<128xf32>>, memref<?x16x?xf32>, i32, i32, i32) -> ()
    """

    fragment: ext.Operand[FragmentType]
    target: ext.Operand[Any]
    coords: Sequence[ext.Operand[I32]]
    dims: Any

    ATTRIBUTE_CLASSES = DIMS

    @staticmethod
    def verify_invariants(op: "StoreGlobalOp") -> bool:
        """Coordinates and dims fit the tensor."""
        fragment = FragmentType(op.fragment.type)
        return check_global(op, op.target, fragment.shape, fragment.element)
