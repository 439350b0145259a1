"""Scales of K and V for every position, as in per-token quantisation, or for blocks of neighbouring
positions.

Scales of pages outside the pool and of positions behind the end of the sequence count as 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.dialect.attn.scale import ScaleBlock

from .. import emit as b
from .pages import Pages, page_size
from .sequences import KeySequences
from .sequences import Sequence as StoredSequence
from .storage import Arguments, OperandStorage

Value = Any


@dataclass(frozen=True)
class PositionScales:
    """The scales of one operand, as stored.

    Attributes:
      tensor: [pages, blocks, kv_heads, groups], or [rows, blocks, kv_heads, groups].
      sequences: the scales of each sequence.
      pages: its pages; None without pages.
      block: positions and columns that share a scale.
    """

    tensor: Value
    sequences: KeySequences
    pages: Pages | None
    block: ScaleBlock

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return self.block.columns

    @property
    def page_positions(self) -> int:
        """Positions whose scales lie in a page; 0 without pages."""
        return 0 if self.pages is None else page_size(self.tensor) * self.block.rows

    @classmethod
    def of(cls, storage: OperandStorage, arguments: Arguments) -> "PositionScales | None":
        """The scales of an operand of attention, as arguments of the kernel; None without any."""
        if (step := storage.position_scales) is None:
            return None
        storage_of_scales = OperandStorage.of(step.scales)
        stored = storage_of_scales.keys(arguments[storage_of_scales.root], arguments)
        return cls(stored.tensor, stored.sequences, stored.pages, step.scale_block)

    @property
    def lists(self) -> tuple[Value, ...]:
        """The arrays that list pages; none without pages."""
        return () if self.pages is None else self.pages.lists

    def read_entries(self, batch: Value, column: Value, count: int) -> list[Value]:
        """i32 [count]: the page of each of `count` keys from a column on; empty without pages."""
        if (pages := self.pages) is None:
            return []
        size = self.page_positions

        def entry(number: Value) -> Value:
            return pages.entry(batch, b.INT.floordiv(b.INT.add(column, number), size))

        return [b.generate(entry, [count], b.i32())]

    def load(
        self,
        sequence: StoredSequence,
        column: Value,
        entries: Sequence[Value],
        count: int,
        head: Value,
        group: int,
    ) -> Value:
        """The scales of `count` keys from a column on, f32 [count]; 0 for keys that have none.

        Args:
          sequence: the stored scales of the sequence, with its number of keys.
          entries: the result of `read_entries`.
          head: key-value head.
          group: number of the group of columns.
        """
        f32, zero = ir.F32Type.get(), b.f32_constant(0.0)

        def scale_at(coords: Sequence[Value], position: Value, *conditions: Value) -> Value:
            exists = b.compare("slt", position, sequence.length)
            for condition in conditions:
                exists = b.INT.both(exists, condition)
            value = b.element(self.tensor, [*coords, head, group])
            if not isinstance(value.type, ir.F32Type):
                value = arith.ExtFOp(f32, value).result
            return b.select(exists, value, zero)

        def in_row(number: Value) -> Value:
            position = b.INT.add(column, number)
            return scale_at([*sequence.lead, self._number(sequence.row(position))], position)

        def in_page(page: Value, number: Value) -> Value:
            position, size = b.INT.add(column, number), self.page_positions
            begin = b.INT.mul(b.INT.floordiv(position, size), size)
            inside = b.compare("sge", page, 0), b.compare("slt", page, b.extent(self.tensor, 0))
            inner = self._number(b.INT.sub(position, begin))
            return scale_at([page, inner], position, *inside)

        if self.pages is None:
            return b.generate(in_row, [count], f32)
        return b.map_rows(in_page, *entries, element=f32)

    def _number(self, position: Value) -> Value:
        """The number of a position's block."""
        return position if self.block.rows == 1 else b.INT.floordiv(position, self.block.rows)


def position_scales_of(
    k: OperandStorage, v: OperandStorage, arguments: Arguments
) -> tuple[PositionScales, PositionScales] | None:
    """The scales of k and of v; None if neither has any."""
    keys, values = (PositionScales.of(storage, arguments) for storage in (k, v))
    return None if keys is None or values is None else (keys, values)
