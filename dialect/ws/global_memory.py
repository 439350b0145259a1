"""Loads and stores of fragments in global memory, by threads."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import I32, ext, ir

from .dialect import WS, FragmentType, fail
from .memory import DIMS, check_global

SCATTER_MODES = ("store", "add")


class LoadGlobalOp(WS.Operation, name="load_global"):
    """Threads read a fragment from a tensor, which other CTAs may have written; zeros outside it.

    Writes of other CTAs are visible after a `ws.arrive_last` that says all have arrived; writes of
    earlier kernels after `ws.grid_dependency_wait`, if launches overlap.

    Operands:
      source: tensor argument.
      coords: i32 start coordinates, one per tensor dimension.

    Attributes:
      dims: as in `ws.copy_in`; for a fragment [R] only the row dimension.

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
        """Checks that coordinates and dims fit the tensor."""
        fragment = FragmentType(op.fragment.type)
        return check_global(op, op.source, fragment.shape, fragment.element)


class StoreGlobalOp(WS.Operation, name="store_global"):
    """Threads write a fragment to a tensor; rows outside the tensor are dropped.

    Operands:
      fragment: [R, C] or [R].
      target: tensor argument.
      coords: i32 start coordinates, one per tensor dimension.

    Attributes:
      dims: as in `ws.copy_in`; for a fragment [R] only the row dimensions.

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
        """Checks that coordinates and dims fit the tensor."""
        fragment = FragmentType(op.fragment.type)
        return check_global(op, op.target, fragment.shape, fragment.element, by_rows=True)


class LoadRowsOp(WS.Operation, name="load_rows"):
    """Threads read a fragment whose rows lie anywhere in a tensor, each given by its number.

    Rows that the tensor does not have, such as those below 0, and columns beyond the tensor's are
    zeros.

    Operands:
      source: tensor argument.
      rows: fragment [R] of i32: row r of the fragment is row rows[r] of the tensor.
      coords: i32 coordinates, one per tensor dimension; the numbers are added to that of the rows.

      Attributes:
        dims: the tensor dimensions along which rows and columns run. With a third entry between the
          two, of extent e, row n is at n / e of the first and n % e of that one.

    Results:
      fragment: [R, C].

    Memory effects: reads the tensor. Hardware: any.

    Example:
      %angles = "ws.load_rows"(%cos, %positions, %zero, %zero)
        {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
        : (memref<?x64xf32>, !ws.frag<vector<32xi32>>, i32, i32) -> !ws.frag<vector<32x64xf32>>
    """

    source: ext.Operand[Any]
    rows: ext.Operand[FragmentType]
    coords: Sequence[ext.Operand[I32]]
    dims: Any
    fragment: ext.Result[FragmentType]

    ATTRIBUTE_CLASSES = DIMS

    @staticmethod
    def verify_invariants(op: "LoadRowsOp") -> bool:
        """Checks that coordinates and dims fit the tensor, and for a number for each row."""
        return _check_rows(op, op.source)


class StoreRowsOp(WS.Operation, name="store_rows"):
    """Threads write the rows of a fragment to rows of a tensor, each given by its number.

    Rows that the tensor does not have, such as those below 0, and columns beyond the tensor's are
    dropped. If two rows have the same number, either may remain.

    Operands:
      fragment: [R, C]; or [R], an element of each row.
      rows: fragment [R] of i32: row r of the fragment goes to row rows[r] of the tensor.
      target: tensor argument.
      coords: i32 coordinates, one per tensor dimension; the numbers are added to that of the rows.

    Attributes:
      dims: as of `ws.load_rows`; for a fragment [R] the row dimensions alone.

    Memory effects: writes the tensor. Hardware: any.

    Example:
      "ws.store_rows"(%keys, %slots, %pool, %zero, %zero, %head, %zero)
        {dims = array<i32: 0, 1, 3>, operandSegmentSizes = array<i32: 1, 1, 1, 4>}
        : (!ws.frag<vector<32x64xbf16>>, !ws.frag<vector<32xi32>>, memref<?x16x4x64xbf16>,
          i32, i32, i32, i32) -> ()
    """

    fragment: ext.Operand[FragmentType]
    rows: ext.Operand[FragmentType]
    target: ext.Operand[Any]
    coords: Sequence[ext.Operand[I32]]
    dims: Any

    ATTRIBUTE_CLASSES = DIMS

    @staticmethod
    def verify_invariants(op: "StoreRowsOp") -> bool:
        """Checks that coordinates and dims fit the tensor, and for a number for each row."""
        return _check_rows(op, op.target, or_elements=True)


class ScatterOp(WS.Operation, name="scatter"):
    """Threads write elements of a fragment anywhere in a tensor, each given by its position.

    An element that several threads hold is written once.

    Operands:
      fragment: [R, C] or [R], of f32.
      positions: of the shape of the fragment, i32: in the dense tensor, in row-major order;
        elements with a position below 0 are dropped.
      target: tensor argument of f32, dense.

    Attributes:
      mode: `store`: if two elements have the same position, either may remain; or `add`: elements
        are added to those of the tensor, atomically and in any order.

    Memory effects: writes the tensor, and reads it to add. Hardware: any.

    Example:
      "ws.scatter"(%parts, %places, %sums) {mode = "add"}
        : (!ws.frag<vector<64x64xf32>>, !ws.frag<vector<64x64xi32>>, memref<?x?xf32>) -> ()
    """

    fragment: ext.Operand[FragmentType]
    positions: ext.Operand[FragmentType]
    target: ext.Operand[Any]
    mode: ir.StringAttr

    @property
    def adds(self) -> bool:
        """Whether elements are added."""
        return self.mode.value == "add"

    def verify_invariants(self) -> bool:
        """Checks the element types, and that there is a position for each element."""
        fragment = FragmentType(self.fragment.type)
        positions = FragmentType(self.positions.type)
        if str(fragment.element) != "f32":
            return fail(self, f"expects elements of f32, got {fragment}")
        if positions.shape != fragment.shape or str(positions.element) != "i32":
            return fail(self, f"expects positions {fragment.shape} of i32, got {positions}")
        kind = self.target.type
        if not isinstance(kind, ir.MemRefType) or str(kind.element_type) != "f32":
            return fail(self, f"expects a memref of f32, got {kind}")
        if self.mode.value not in SCATTER_MODES:
            return fail(self, f"expects mode of {', '.join(SCATTER_MODES)}, got {self.mode.value}")
        return True


def _check_rows(op: LoadRowsOp | StoreRowsOp, tensor: Any, *, or_elements: bool = False) -> bool:
    """Whether a fragment of rows, their numbers, coordinates and dims fit a tensor.

    Args:
      or_elements: whether the fragment may have one element of each row as well.
    """
    fragment, rows = FragmentType(op.fragment.type), FragmentType(op.rows.type)
    if len(fragment.shape) != 2 and not or_elements:
        return fail(op, f"expects a fragment [R, C], got {fragment}")
    if rows.shape != fragment.shape[:1] or str(rows.element) != "i32":
        return fail(op, f"expects {fragment.shape[0]} rows of i32, got {rows}")
    if not isinstance(tensor.type, ir.MemRefType):
        return fail(op, f"expects a memref, got {tensor.type}")
    kind = ir.MemRefType(tensor.type)
    if kind.element_type != fragment.element:
        return fail(op, f"expects elements of {kind.element_type}, got {fragment.element}")
    if len(op.coords) != kind.rank:
        return fail(op, f"expects {kind.rank} coordinates, got {len(op.coords)}")
    dims = list[int](op.dims)
    counts = (2, 3) if len(fragment.shape) == 2 else (1, 2)
    if len(dims) not in counts or len(set(dims)) != len(dims):
        return fail(op, f"expects {counts[0]} or {counts[1]} distinct dims, got {dims}")
    if any(not 0 <= dim < kind.rank for dim in dims):
        return fail(op, f"expects dims in 0..{kind.rank - 1}, got {dims}")
    return True
