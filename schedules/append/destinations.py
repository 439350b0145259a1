"""Destinations of new tokens in a cache: the sequence, position and row of each.

Rows are numbered over the cache's first two dimensions together: page size x page + offset, or
positions x row + position. Arrays may hold any numbers: a token without a destination gets row -1,
which is not written.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from attn_mlir.dialect import attn
from attn_mlir.dialect._mlir import arith, ir

from .. import emit as b
from ..operands.pages import Pages, page_size
from ..operands.storage import OperandStorage

Value = Any

NOWHERE = -1
MAX_ROW = 2**31 - 1


class Token(NamedTuple):
    """A new token; i32 each, and `exists` i1.

    Attributes:
      row: its index among all tokens.
      coords: its coordinates in arrays with one element per token.
      exists: whether it is a token, not past the last one.
      sequence: the index of its sequence; out of range for none.
      number, count: its index among the new tokens of its sequence, and their number.
    """

    row: Value
    coords: tuple[Value, ...]
    exists: Value
    sequence: Value
    number: Value
    count: Value


@dataclass(frozen=True)
class TokenArrays:
    """The arrays of tokens' destinations: memrefs, None if absent; see `attn.append`."""

    slots: Value | None
    positions: Value | None
    sequences: Value | None
    offsets: Value | None

    @staticmethod
    def of(op: attn.AppendOp, arguments: Mapping[Value, Value]) -> "TokenArrays":
        """The arrays of an operation, as arguments of its kernel."""
        lists = (op.slots, op.positions, op.sequences, op.offsets)
        return TokenArrays(*(arguments[values[0]] if len(values) else None for values in lists))


@dataclass(frozen=True)
class Destination:
    """The cache of keys or of values, and the storage of its sequences.

    Attributes:
      tensor: memref of the kernel, [pages, page, ...] or [rows, positions, ...].
      pages: the pages of its sequences; None where each sequence is one row of the tensor.
      indices: the row of each sequence; None where row b belongs to sequence b.
      starts: the position of its row at which each sequence begins; None for 0.
      lengths: positions of each sequence, counted from the beginning of its row; None for the
        whole capacity.
      counts_new: whether the lengths include the new tokens.
      scale_table: [1 or batch, 1 or heads] that elements are divided by, or None.
      scales: the destination of scales per position, or None.
    """

    tensor: Value
    pages: Pages | None
    indices: Value | None
    starts: Value | None
    lengths: Value | None
    counts_new: bool
    scale_table: Value | None
    scales: "Destination | None"

    @staticmethod
    def of(cache: OperandStorage, arguments: Mapping[Value, Value]) -> "Destination":
        """The destination in a cache of `attn.append`, by how it is stored."""
        tensor, scales = arguments[cache.root], cache.position_scales
        lengths, selection, padding = cache.lengths, cache.selection, cache.padding
        return Destination(
            tensor=tensor,
            pages=cache.keys(tensor, arguments).pages,
            indices=None if selection is None else arguments[selection.indices],
            starts=None if padding is None else arguments[padding.counts],
            lengths=None if lengths is None else arguments[lengths.lengths],
            counts_new=lengths is None or not lengths.excludes_queries,
            scale_table=cache.scale_table(arguments),
            scales=None
            if scales is None
            else Destination.of(OperandStorage.of(scales.scales), arguments),
        )

    def _count(self) -> Value:
        """Number of sequences."""
        if self.pages is not None:
            return self.pages.count()
        return b.extent(self.tensor if self.indices is None else self.indices, 0)

    def _start(self, sequence: Value) -> Value:
        return b.constant(0) if self.starts is None else b.element(self.starts, [sequence])

    def _length(self, token: Token) -> Value:
        """Positions of the token's sequence including the new tokens, from the arrays."""
        if self.lengths is not None:
            length = b.element(self.lengths, [token.sequence])
            return length if self.counts_new else b.INT.add(length, token.count)
        if self.pages is not None:
            return self.pages.of(token.sequence).length
        return b.extent(self.tensor, 1)

    def place(self, arrays: TokenArrays, token: Token) -> tuple[Value, Value]:
        """The token's position in its sequence, and its position in the row."""
        start = self._start(token.sequence)
        if arrays.positions is not None:
            position = b.element(arrays.positions, token.coords)
            return position, b.INT.add(start, position)
        remaining = b.INT.sub(token.count, token.number)
        row_position = b.INT.sub(self._length(token), remaining)
        return b.INT.sub(row_position, start), row_position

    def row(self, arrays: TokenArrays, token: Token) -> Value:
        """The token's destination row, or `NOWHERE`."""
        if arrays.slots is not None:
            return b.select(
                token.exists, _as_i32(b.element(arrays.slots, token.coords)), _nowhere()
            )
        return self.row_at(token, *self.place(arrays, token))

    def row_at(self, token: Token, position: Value, row_position: Value) -> Value:
        """The destination row of a token at the positions that `place` returns, or `NOWHERE`."""
        checks = [
            token.exists,
            *_within(token.sequence, self._count()),
            b.compare("sge", position, 0),
        ]
        if self.pages is None:
            capacity, size = b.extent(self.tensor, 1), b.extent(self.tensor, 1)
            line, offset = token.sequence, row_position
            if self.indices is not None:
                line = b.element(self.indices, [token.sequence])
        else:
            capacity, size = self.pages.capacity(token.sequence), b.constant(page_size(self.tensor))
            clamped = b.INT.max(row_position, 0)
            number = b.INT.floordiv(clamped, size)
            line = self.pages.entry(token.sequence, number)
            offset = b.INT.sub(clamped, b.INT.mul(number, size))
        checks += [*_within(row_position, capacity), *_within(line, b.extent(self.tensor, 0))]
        row = b.INT.add(b.INT.mul(line, size), offset)
        return b.select(_all(checks), row, _nowhere())


def _nowhere() -> Value:
    return b.constant(NOWHERE)


def _within(number: Value, end: Value) -> list[Value]:
    """The conditions 0 <= number and number < end, i1 each."""
    return [b.compare("sge", number, 0), b.compare("slt", number, end)]


def _all(conditions: Iterable[Value]) -> Value:
    return functools.reduce(b.INT.both, conditions)


def _as_i32(slot: Value) -> Value:
    """A slot as i32; `NOWHERE` for a number that does not fit i32."""
    if slot.type == b.i32():
        return slot
    i64 = slot.type
    low, high = (arith.ConstantOp(i64, ir.IntegerAttr.get(i64, x)).result for x in (0, MAX_ROW))
    fits = b.INT.both(
        arith.CmpIOp(arith.CmpIPredicate.sge, slot, low).result,
        arith.CmpIOp(arith.CmpIPredicate.sle, slot, high).result,
    )
    return b.select(fits, arith.TruncIOp(b.i32(), slot).result, _nowhere())
