"""Functions that emit operations on fragments."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.scalars import (
    fmul,
    i1,
    i32,
    truncate,
)
from attn_mlir.dialect.ws.compute import WORD_BITS

Value = Any


def broadcast_lanes(lanes: Value) -> Value:
    """Broadcasts elements [N], of one lane each, to the lanes that use them."""
    return ws.SpreadOp(lanes, lanes.type).line


def fill(shape: Sequence[int], value: Value) -> Value:
    """A fragment with the same value in every element."""
    return ws.FillOp(value, ws.fragment_type(shape, value.type)).fragment


@overload
def map_elements(body: Callable[[Value], Value], a: Value, /, *, element: Any = None) -> Value: ...


@overload
def map_elements(
    body: Callable[[Value, Value], Value], a: Value, b: Value, /, *, element: Any = None
) -> Value: ...


@overload
def map_elements(body: Callable[..., Value], *inputs: Value, element: Any = None) -> Value: ...


def map_elements(body: Callable[..., Value], *inputs: Value, element: Any = None) -> Value:
    """A `ws.map` that ignores coordinates: `body(*elements)` returns the new element.

    `element` is the result's element type, that of the first input when absent.
    """
    kind = ws.FragmentType(inputs[0].type)
    element = kind.element if element is None else element
    return _map(lambda *arguments: body(*arguments[: len(inputs)]), inputs, kind.shape, element)


@overload
def map_coordinates(
    body: Callable[[Value, Value, Value], Value],
    a: Value,
    /,
    *,
    element: Any = None,
    at_a_time: int = 0,
) -> Value: ...


@overload
def map_coordinates(
    body: Callable[[Value, Value, Value, Value], Value],
    a: Value,
    b: Value,
    /,
    *,
    element: Any = None,
    at_a_time: int = 0,
) -> Value: ...


def map_coordinates(
    body: Callable[..., Value], *inputs: Value, element: Any = None, at_a_time: int = 0
) -> Value:
    """A `ws.map` of 2-D fragments: `body(*elements, row, column)` returns the new element.

    Args:
      element: the result's element type, that of the first input when absent.
      at_a_time: elements that a thread computes at a time; 0 for any number.
    """
    kind = ws.FragmentType(inputs[0].type)
    result = _map(body, inputs, kind.shape, kind.element if element is None else element)
    if at_a_time:
        result.owner.attributes[ws.IN_TURN] = ir.IntegerAttr.get(i32(), at_a_time)
    return result


def generate(body: Callable[..., Value], shape: Sequence[int], element: Any) -> Value:
    """A `ws.map` without inputs: `body(*coordinates)` returns the element."""
    return _map(body, [], shape, element)


@overload
def map_rows(
    body: Callable[[Value, Value], Value], a: Value, /, *, element: Any = None
) -> Value: ...


@overload
def map_rows(body: Callable[..., Value], *inputs: Value, element: Any = None) -> Value: ...


def map_rows(body: Callable[..., Value], *inputs: Value, element: Any = None) -> Value:
    """A `ws.map` of fragments [rows]: `body(*elements, row)` returns the new element.

    `element` as in `map_elements`.
    """
    kind = ws.FragmentType(inputs[0].type)
    return _map(body, inputs, kind.shape, kind.element if element is None else element)


def _map(
    body: Callable[..., Value], inputs: Sequence[Value], shape: Sequence[int], element: Any
) -> Value:
    op = ws.MapOp(list(inputs), ws.fragment_type(shape, element))
    kinds = [ws.FragmentType(value.type).element for value in inputs]
    block = op.body.blocks.append(*kinds, *[i32() for _ in shape])
    with ir.InsertionPoint(block):
        ws.YieldOp(body(*block.arguments))
    return op.fragment


def reduce_rows(kind: str, fragment: Value, init: Value) -> Value:
    """[rows]: the sum (`add`) or maximum (`max`) of each row and of its element of `init`."""
    return ws.ReduceOp(fragment, init, ir.StringAttr.get(kind), init.type).totals


def reduce_columns(kind: str, fragment: Value, init: Value) -> Value:
    """[columns]: as `reduce_rows`, of each column and its element of `init`."""
    op = ws.ReduceOp(fragment, init, ir.StringAttr.get(kind), init.type)
    op.operation.attributes["axis"] = ir.StringAttr.get("rows")
    return op.totals


def reduce_group(kind: str, fragment: Value, init: Value, scratch: Value) -> Value:
    """As `reduce_rows`, of rows whose columns are in several warps, through shared `scratch`."""
    return ws.ReduceGroupOp(fragment, init, scratch, ir.StringAttr.get(kind), init.type).totals


def transposed(fragment: Value) -> Value:
    """A fragment with its axes exchanged."""
    kind = ws.FragmentType(fragment.type)
    return ws.TurnOp(fragment, ws.fragment_type(kind.shape[::-1], kind.element)).turned


def interleaved(fragment: Value, axis: str = "columns") -> Value:
    """The halves of every 16 columns, or rows, interleaved by pairs."""
    op = ws.InterleaveOp(fragment, fragment.type)
    if axis != "columns":
        op.operation.attributes["axis"] = ir.StringAttr.get(axis)
    return op.interleaved


def opaque(fragment: Value) -> Value:
    """A fragment of f32 that is not rematerialised later."""
    return ws.PinOp(fragment, fragment.type).pinned


def fold(fragment: Value, init: Value) -> Value:
    """Folds [rows, N] onto `init` [rows, n]: its column i plus columns i, i + n, i + 2 n, ..."""
    return ws.FoldOp(fragment, init, init.type).totals


def bits(rows: Value) -> Value:
    """Bitmask words of conditions [rows], 32 rows to a word."""
    (count,) = ws.FragmentType(rows.type).shape
    return ws.BitsOp(rows, words=ws.fragment_type([count // WORD_BITS], i32())).words


def broadcast(rows: Value, column_count: int) -> Value:
    """[rows, column_count]: each element of `rows` [rows] repeated along its row."""
    kind = ws.FragmentType(rows.type)
    full = ws.fragment_type([kind.shape[0], column_count], kind.element)
    return ws.BroadcastOp(rows, full).fragment


def repeat_columns(runs: Value, column_count: int) -> Value:
    """[rows, column_count]: each column of `runs`, repeated."""
    kind = ws.FragmentType(runs.type)
    full = ws.fragment_type([kind.shape[0], column_count], kind.element)
    return ws.RepeatOp(runs, full).fragment


def times_rows(fragment: Value, rows: Value) -> Value:
    """A fragment [rows, columns] of f32 with row r multiplied by rows[r]."""
    columns = ws.FragmentType(fragment.type).shape[1]
    return map_elements(fmul, fragment, broadcast(rows, columns))


def broadcast_down(columns: Value, row_count: int) -> Value:
    """[row_count, columns]: each element of `columns` [columns] repeated along its column."""
    kind = ws.FragmentType(columns.type)
    op = ws.BroadcastOp(columns, ws.fragment_type([row_count, kind.shape[0]], kind.element))
    op.operation.attributes["axis"] = ir.StringAttr.get("rows")
    return op.fragment


def times_columns(fragment: Value, columns: Value) -> Value:
    """A fragment [rows, columns] of f32 with column c multiplied by columns[c]."""
    rows = ws.FragmentType(fragment.type).shape[0]
    return map_elements(fmul, fragment, broadcast_down(columns, rows))


def rounded(fragment: Value, element: Any) -> Value:
    """A fragment of f32 rounded to an element type; the fragment itself for f32."""
    if isinstance(element, ir.F32Type):
        return fragment
    return map_elements(lambda x: truncate(x, element), fragment, element=element)


def mask_select(fragment: Value, words: Value, other: Value) -> Value:
    """Selects by a bitmask: elements whose bit is set, else `other`."""
    return ws.KeepOp(fragment, words, other, fragment.type).kept


def exp2_tile(exponent: Value, *, period: int, count: int, begin: int, end: int) -> Value:
    """2 to the power of each element.

    From column `begin` to before `end`, the last `count` of every `period` columns are computed on
    the multiply-add units, all others on the special-function unit.
    """
    i64 = ir.IntegerType.get_signless(64)
    attributes = [ir.IntegerAttr.get(i64, number) for number in (period, count, begin, end)]
    return ws.Exp2Op(exponent, *attributes, exponent.type).fragment


def false() -> Value:
    """The constant false, i1."""
    return arith.ConstantOp(i1(), ir.IntegerAttr.get(i1(), 0)).result


def true() -> Value:
    """The constant true, i1."""
    return arith.ConstantOp(i1(), ir.IntegerAttr.get(i1(), 1)).result


def any_row(rows: Value) -> Value:
    """i1: whether the condition [rows] holds for any row of this warp."""
    return ws.AnyOp(rows).holds


def any_in_group(conditions: Value) -> Value:
    """i1: whether a condition holds anywhere in this group; a barrier of its threads."""
    op = ws.AnyOp(conditions)
    op.operation.attributes["scope"] = ir.StringAttr.get("group")
    return op.holds
