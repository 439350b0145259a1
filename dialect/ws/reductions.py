"""Reductions of fragments along an axis, and the way back: one number for a row or column."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir

from .compute import WORD_BITS
from .dialect import WS, FragmentType, TileType, element_bits, fail

REDUCTIONS = ("add", "max")
AXES = ("rows", "columns")
AXIS = "axis"


def axis_of(op: Any) -> int:
    """The axis in an operation's attribute, 0 for rows and 1 for columns;
    1 without the attribute.
    """
    return AXES.index(ir.StringAttr(op.attributes[AXIS]).value) if AXIS in op.attributes else 1


def _check_line(op: Any, full: FragmentType, lines: Sequence[FragmentType]) -> bool:
    """Checks that the axis is known and that `lines` have one element per index of the other
    axis.
    """
    if AXIS in op.attributes and (name := ir.StringAttr(op.attributes[AXIS]).value) not in AXES:
        return fail(op, f"expects axis of {', '.join(AXES)}, got {name}")
    if len(full.shape) != 2:
        return fail(op, f"expects a fragment of rank 2, got {full}")
    kept = 1 - axis_of(op)
    for line in lines:
        if (line.shape, line.element) != ([full.shape[kept]], full.element):
            return fail(op, f"expects one {full.element} per {AXES[kept][:-1]}, got {line}")
    return True


def _check_reduction(op: Any) -> bool:
    """A known kind; `init` and the result have one element per row, or column."""
    if op.kind.value not in REDUCTIONS:
        return fail(op, f"expects kind of {', '.join(REDUCTIONS)}, got {op.kind.value}")
    lines = [FragmentType(value.type) for value in (op.init, op.totals)]
    return _check_line(op, FragmentType(op.fragment.type), lines)


class ReduceOp(WS.Operation, name="reduce", traits=[Pure]):
    """Reduces [R, C] to [R], or to [C], starting from `init`.

    Operands:
      fragment: [R, C].
      init: [R] or [C], like the result.

    Attributes:
      kind: `add` or `max`.
      axis (optional): the axis that is reduced: `columns`, the default, or `rows`.

    Memory effects: none, but the threads of a warp that hold a row (or column) have to execute it
    together. Hardware: any.

    Example:
      %max = "ws.reduce"(%s, %old) {kind = "max"}
        : (!ws.frag<vector<128x64xf32>>, !ws.frag<vector<128xf32>>) -> !ws.frag<vector<128xf32>>
      %sum = "ws.reduce"(%s, %none) {axis = "rows", kind = "add"}
        : (!ws.frag<vector<128x64xf32>>, !ws.frag<vector<64xf32>>) -> !ws.frag<vector<64xf32>>
    """

    OPTIONAL_ATTRIBUTES = MappingProxyType({AXIS: ir.StringAttr})

    fragment: ext.Operand[FragmentType]
    init: ext.Operand[FragmentType]
    kind: ir.StringAttr
    totals: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "ReduceOp") -> bool:
        """A known kind; `init` and the result have one element per row, or column."""
        return _check_reduction(op)

    @property
    def axis(self) -> int:
        """The axis that is reduced: 0 for rows, 1 for columns."""
        return axis_of(self)


class FoldOp(WS.Operation, name="fold", traits=[Pure]):
    """Adds up columns that are c apart, [R, C] to [R, c], starting from `init`.

    Column i of the result is that of `init` plus the columns i, i + c, i + 2 c, ... A row sum over
    many steps is folded in each step, without communication between threads, and reduced once at
    the end.

    Operands:
      fragment: [R, C], f32.
      init: [R, c], like the result; c divides C.

    Memory effects: none. Hardware: any.

    Example:
      %some = "ws.fold"(%p, %before)
        : (!ws.frag<vector<64x128xf32>>, !ws.frag<vector<64x8xf32>>) -> !ws.frag<vector<64x8xf32>>
    """

    fragment: ext.Operand[FragmentType]
    init: ext.Operand[FragmentType]
    totals: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "FoldOp") -> bool:
        """Checks for f32 of rank 2, equal rows, and columns of `init` that divide the
        fragment's.
        """
        full, init, totals = (FragmentType(v.type) for v in (op.fragment, op.init, op.totals))
        if init != totals:
            return fail(op, f"expects init of the result's type {totals}, got {init}")
        for kind in (full, init):
            if len(kind.shape) != 2 or not isinstance(kind.element, ir.F32Type):
                return fail(op, f"expects fragments of rank 2 and f32, got {kind}")
        (rows, columns), (kept, width) = full.shape, init.shape
        if rows != kept or columns % width:
            return fail(op, f"expects {rows} rows, and columns that divide {columns}, got {init}")
        return True


class ReduceGroupOp(WS.Operation, name="reduce_group"):
    """As `ws.reduce`, along an axis that several warps of a group have elements of.

    Each warp leaves in `scratch` what it has found, and reads there what the others have.

    Operands:
      fragment: [R, C], f32.
      init: [R] or [C], as the result.
      scratch: shared tile with room for as many numbers from every warp of the group.

    Attributes:
      kind: `add` or `max`.
      axis (optional): what goes, `columns`, the default, or `rows`.

    Memory effects: writes and reads `scratch`; the threads of the group meet before and after, so
    that it can be written again. Hardware: any.

    Example:
      %max = "ws.reduce_group"(%s, %old, %cells) {kind = "max"}
        : (!ws.frag<vector<8x128xf32>>, !ws.frag<vector<8xf32>>, !ws.tile<vector<32xf32>, "shared">)
          -> !ws.frag<vector<8xf32>>
    """

    OPTIONAL_ATTRIBUTES = MappingProxyType({AXIS: ir.StringAttr})

    fragment: ext.Operand[FragmentType]
    init: ext.Operand[FragmentType]
    scratch: ext.Operand[TileType]
    kind: ir.StringAttr
    totals: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "ReduceGroupOp") -> bool:
        """As of `ws.reduce`; f32 in a shared array."""
        scratch = TileType(op.scratch.type)
        is_array = scratch.space == "shared" and len(scratch.shape) == 1
        if not is_array or not isinstance(scratch.element, ir.F32Type):
            return fail(op, f"expects scratch of f32 in a shared tile of rank 1, got {scratch}")
        return _check_reduction(op)

    @property
    def axis(self) -> int:
        """The axis that goes: 0 for rows, 1 for columns."""
        return axis_of(self)


class BroadcastOp(WS.Operation, name="broadcast", traits=[Pure]):
    """Repeats a value per row along the columns, [R] to [R, C], or a value per column along the
    rows.

    Operands:
      line: [R] or [C].

    Attributes:
      axis (optional): the axis along which it is repeated: `columns`, the default, or `rows`.

    Memory effects: none. Hardware: any.

    Example:
      %wide = "ws.broadcast"(%max) : (!ws.frag<vector<128xf32>>) -> !ws.frag<vector<128x64xf32>>
      %high = "ws.broadcast"(%sum) {axis = "rows"}
        : (!ws.frag<vector<64xf32>>) -> !ws.frag<vector<128x64xf32>>
    """

    OPTIONAL_ATTRIBUTES = MappingProxyType({AXIS: ir.StringAttr})

    line: ext.Operand[FragmentType]
    fragment: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "BroadcastOp") -> bool:
        """Checks that the result has one more dimension, of columns or rows."""
        return _check_line(op, FragmentType(op.fragment.type), [FragmentType(op.line.type)])

    @property
    def axis(self) -> int:
        """The axis along which the line is repeated: 0 for rows, 1 for columns."""
        return axis_of(self)


class RepeatOp(WS.Operation, name="repeat", traits=[Pure]):
    """Repeats each column in its place, [R, c] to [R, C]: column j of the result is column j c / C.

    A number for each run of neighbouring columns, such as their scale, is then in the threads that
    have elements of the run, and in no other.

    Operands:
      runs: [R, c], 32 bits each.

    Results:
      fragment: [R, C]; C / c is a power of two.

    Memory effects: none. Hardware: any.

    Example:
      %scales = "ws.repeat"(%two) : (!ws.frag<vector<64x2xf32>>) -> !ws.frag<vector<64x64xf32>>
    """

    runs: ext.Operand[FragmentType]
    fragment: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "RepeatOp") -> bool:
        """Rank 2, 32 bits, equal rows, and columns that are repeated a power of two times."""
        runs, full = FragmentType(op.runs.type), FragmentType(op.fragment.type)
        if len(runs.shape) != 2 or element_bits(runs.element) != WORD_BITS:
            return fail(op, f"expects runs of rank 2 and 32 bits, got {runs}")
        if len(full.shape) != 2 or (full.shape[0], full.element) != (runs.shape[0], runs.element):
            expected = f"{runs.shape[0]} rows of {runs.element}"
            return fail(op, f"expects a result of rank 2 with {expected}, got {full}")
        count, remainder = divmod(full.shape[1], runs.shape[1])
        if remainder or count & (count - 1) or not count:
            return fail(op, f"expects {runs.shape[1]} columns times a power of two, got {full}")
        return True

    @property
    def count(self) -> int:
        """Columns of a run."""
        full, runs = FragmentType(self.fragment.type), FragmentType(self.runs.type)
        return full.shape[1] // runs.shape[1]


class SpreadOp(WS.Operation, name="spread", traits=[Pure]):
    """Redistributes elements that one lane of a warp holds each, into the layout that their users
    need.

    Numbers that a warp reads from memory are in one lane each, while several lanes hold elements of
    a product's row or column, and each of them needs the number that belongs to it.

    Operands:
      lanes: [N], 32 bits each, N a multiple of 32: lane i of every warp has elements i, i + 32, ...

    Results:
      line: [N], in the layout that its users need.

    Memory effects: none, but the threads of a warp have to execute it together. Hardware: any.

    Example:
      %line = "ws.spread"(%lanes) : (!ws.frag<vector<32xf32>>) -> !ws.frag<vector<32xf32>>
    """

    lanes: ext.Operand[FragmentType]
    line: ext.Result[FragmentType]

    @staticmethod
    def verify_invariants(op: "SpreadOp") -> bool:
        """Checks for a single type, of rank 1 and 32 bits."""
        kind = FragmentType(op.lanes.type)
        if len(kind.shape) != 1 or element_bits(kind.element) != WORD_BITS:
            return fail(op, f"expects lanes of rank 1 and 32 bits, got {kind}")
        if op.line.type != op.lanes.type:
            return fail(op, f"expects a result of type {kind}, got {op.line.type}")
        return True
