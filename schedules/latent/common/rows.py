"""Where the rows of a latent cache come from: rows of 16 bits, or of 8 bits that warps widen.

Rows of 16 bits are copied by the copy engine as they are (`WideRows`). Those of 8 bits go through
registers (`NarrowRows`): threads read what the rows hold, widen it and write the tile that products
read, so that what is stored needs no place in shared memory. A block is read while the one before
it is written.

```text
a row, v32    512 of 8 bits | 4 factors | 64 of 16 bits
               |   pieces of 64 columns, 16 of them in a thread: e4m3 -> f16 -> f32 x factor -> bf16
tile          | 0 .. 63 | 64 .. 127 | ... | 448 .. 511 | 512 .. 575 |
```
A piece fills one line of 128 bytes in each row of the tile. Of eight neighbouring threads, which
write 128 bytes at a time, four have one row and four the next: their places differ in the lowest
bit of the row, so all banks are written once. With pieces of 128 columns eight have one row, in two
lines of it, and every bank would be written twice.

Where several factors go to a piece, a thread reads the one of its own columns of each piece
(`ws.repeat`); where one goes to several pieces, it is read once for all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.operands.storage import OperandStorage
from attn_mlir.schedules.operands.widen import EXPONENT_BITS, MANTISSA_WIDTH, widened

Value = Any

LOADERS = (
    4  # threads that gather, each its rows of a tile: copies of one are at least 48 clocks apart
)
WIDENERS = (
    8  # warps: of a block of 64 rows of 656 bytes a thread has 10 reads of 16 bytes in flight
)
PAIR_WARPS = (
    4  # that write keys, and values: 20 and 16 reads of a thread are all of a block of 8 bits
)
PIECE = 64  # columns of 16 bits in 128 bytes
ABSENT = (1 << 31) - 1  # a row that no cache has
PAGED_DIMS = 2  # dimensions that the rows of pages run along
LEAST_POWER = 0x400000  # bits of 2^-127, the smallest factor of 8 bits
NOT_A_NUMBER = 0x7FC00000  # bits of a NaN


@dataclass(frozen=True)
class WideRows:
    """Rows as products read them.

    Attributes:
      tensor: [rows, columns].
      loaders: threads that copy parts of a tile of keys.
      ahead: blocks that who fills tiles is ahead with reading.
    """

    tensor: Value
    loaders: ClassVar[int] = LOADERS
    ahead: ClassVar[int] = 0

    def count(self) -> Value:
        """Rows of the cache."""
        return b.extent(self.tensor, 0)


@dataclass(frozen=True)
class NarrowRows:
    """Rows of 8 bits with factors, and 16 bits behind them; see `attn.latent_rows`.

    Attributes:
      narrow, factors, wide: tensors [rows, columns], [pages, page, columns] or [pages, page, 1,
        columns]; None for none.
      group: narrow columns that share a factor.
      loaders: none, tiles are written by warps.
      ahead: as of `WideRows`.
    """

    narrow: Value
    factors: Value | None
    wide: Value | None
    group: int
    loaders: ClassVar[int] = 0
    ahead: ClassVar[int] = 1

    def count(self) -> Value:
        """Rows of the cache."""
        rows = b.extent(self.narrow, 0)
        return b.INT.mul(rows, self.page()) if self._outer > 1 else rows

    def page(self) -> Value | int:
        """Rows of a page."""
        return extent_of(self.narrow, 1)

    @property
    def _outer(self) -> int:
        """Dimensions in front of the columns."""
        return ir.MemRefType(self.narrow.type).rank - 1

    @property
    def columns(self) -> int:
        """Columns of a row."""
        return self._columns + (0 if self.wide is None else _columns(self.wide))

    def is_alike(self, width: int, count: int) -> bool:
        """Whether `count` times `width` columns, side by side, are stored in the same way."""
        is_whole = self.factors is None or width % self.group == 0
        return width * count <= self._columns and is_whole

    def layouts(self, columns: range) -> int:
        """In how many layouts `read` takes the rows."""
        return sum(map(bool, self._split(columns)))

    def read(
        self, rows: Sequence[Value], columns: range, shift: Value | None = None
    ) -> list[Value]:
        """What rows hold of some columns, as it is stored: fragments for `widen`.

        Args:
          rows: [n] of i32, rows of the cache, for each layout; negative ones and `ABSENT` stand for
            rows of zeros.
          columns: whole pieces.
          shift: i32, how many times as many columns lie before them; they are alike.
        """
        narrow, wide = self._split(columns)
        found: list[Value] = []
        if narrow:
            for column in narrow[::PIECE]:
                first = _shifted(column, shift, len(columns))
                found.append(self._part(self.narrow, rows[0], first, PIECE))
            if self.factors is not None:
                found += self._factors(rows[0], narrow, shift)
        if wide:  # threads hold other rows of these
            found.append(self._part(self.wide, rows[-1], wide.start, len(wide)))
        return found

    def widen(self, found: Sequence[Value], tile: Value, columns: range) -> None:
        """Writes those columns into a shared tile of bf16; `found` is what `read` gave."""
        narrow, wide = self._split(columns)
        count = len(narrow) // PIECE
        pieces, rest = found[:count], list(found[count:])
        ends = [rest.pop()] if wide else []
        for number, piece in enumerate(pieces):
            first = number * PIECE
            values = self._values(piece, rest, narrow.start, narrow.start + first)
            b.store(values, b.columns(tile, first, PIECE))
        for piece in ends:
            b.store(piece, b.columns(tile, len(narrow), len(wide)))

    def _split(self, columns: range) -> tuple[range, range]:
        """Of columns those of 8 bits, and those of 16 as they are numbered behind them."""
        end = self._columns
        narrow = range(columns.start, min(columns.stop, end))
        return narrow, range(max(columns.start, end) - end, columns.stop - end)

    def _groups(self, narrow: range) -> range:
        """The groups of factors that columns of 8 bits have."""
        return range(narrow.start // self.group, (narrow.stop - 1) // self.group + 1)

    @property
    def _columns(self) -> int:
        """Columns of 8 bits."""
        return _columns(self.narrow)

    def _part(self, tensor: Value, rows: Value, first: Value | int, count: int) -> Value:
        """Some columns of rows, of a tensor that is one of those of the cache."""
        along = [*range(min(self._outer, PAGED_DIMS)), self._outer]
        return b.load_rows(tensor, rows, count, [0] * self._outer + [first], along)

    @property
    def _in_runs(self) -> bool:
        """Whether pieces have several factors each, and no factor is of two pieces."""
        return self.group < PIECE and PIECE % self.group == 0

    def _factors(self, rows: Value, narrow: range, shift: Value | None) -> list[Value]:
        """The factors of some columns, f32, 0 for rows that there are none of: [n] of each group,
        or of each piece [n, groups]; `shift` is as of `read`."""
        f32 = ir.F32Type.get()

        def shifted(number: int) -> Value | int:
            return _shifted(number, shift, len(narrow) // self.group)

        def of_group(number: int) -> Value:
            own = shifted(number)
            return b.map_rows(lambda row, _: self._factor(row, own), rows, element=f32)

        def of_piece(first: int, count: int) -> Value:
            begin = shifted(first)

            def factor(row: Value, _: Value, number: Value) -> Value:
                return self._factor(row, b.INT.add(number, begin))

            return b.map_coordinates(factor, b.broadcast(rows, count), element=f32)

        if self._in_runs:
            count = PIECE // self.group
            return [of_piece(column // self.group, count) for column in narrow[::PIECE]]
        return [of_group(number) for number in self._groups(narrow)]

    def _factor(self, row: Value, number: Value | int) -> Value:
        """The factor of a group of a row."""
        place: list[Value | int] = [row]
        if self._outer > 1:
            page = self.page()
            outer = b.INT.floordiv(row, page)
            place = [outer, b.INT.sub(row, b.INT.mul(outer, page))]
        place += [0] * (self._outer - len(place))  # the one head
        found = _in_f32(b.element(self.factors, [*place, number]))
        return b.select(b.compare("ult", row, ABSENT), found, b.f32_constant(0.0))

    def _values(self, piece: Value, factors: Sequence[Value], start: int, first: int) -> Value:
        """The columns of a piece from a first one on, times their factors, rounded to bf16; the
        first of the factors is that of column `start`."""
        values = b.map_elements(_extended, widened(piece), element=ir.F32Type.get())
        if factors:
            values = b.map_elements(b.fmul, values, self._of_columns(factors, start, first))
        return b.rounded(values, ir.BF16Type.get())

    def _of_columns(self, factors: Sequence[Value], start: int, first: int) -> Value:
        """The factors of each column of a piece; arguments as of `_values`."""
        if self._in_runs:
            return b.repeated(factors[(first - start) // PIECE], PIECE)
        known = start // self.group
        return self._spread([factors[n - known] for n in self._groups(range(first, first + PIECE))])

    def _spread(self, factors: Sequence[Value]) -> Value:
        """The factors of a piece's groups for each of its columns."""
        found = b.broadcast(factors[0], PIECE)
        for number, other in enumerate(factors[1:], 1):

            def chosen(
                before: Value, own: Value, _: Value, column: Value, begin: int = number * self.group
            ) -> Value:
                return b.select(b.compare("slt", column, begin), before, own)

            found = b.map_coordinates(chosen, found, b.broadcast(other, PIECE))
        return found


Source = WideRows | NarrowRows


def source_of(storage: OperandStorage, arguments: Mapping[Value, Value]) -> Source:
    """Where the rows of an operand come from; `arguments` are those of the kernel by the
    function's.
    """
    if (owner := storage.latent_rows) is None:
        return WideRows(arguments[storage.operand])
    factors, wide = (
        next((arguments[x] for x in some), None) for some in (owner.factors, owner.wide)
    )
    return NarrowRows(arguments[owner.narrow], factors, wide, owner.group.value)


def extent_of(tensor: Value, dim: int) -> Value | int:
    """An extent of a tensor, as a number where it is one."""
    kind = ir.MemRefType(tensor.type)
    return b.extent(tensor, dim) if kind.is_dynamic_dim(dim) else kind.get_dim_size(dim)


def _shifted(number: int, shift: Value | None, by: int) -> Value | int:
    return number if shift is None else b.INT.add(b.INT.mul(shift, by), number)


def _columns(tensor: Value) -> int:
    return list(ir.MemRefType(tensor.type).shape)[-1]


def _extended(x: Value) -> Value:
    return arith.ExtFOp(ir.F32Type.get(), x).result


def _in_f32(factor: Value) -> Value:
    """A factor as it is stored as f32: of 8 bits, e stands for 2^(e - 127) and 255 for NaN."""
    if isinstance(factor.type, ir.F32Type):
        return factor
    bits = arith.ShLIOp(arith.ExtUIOp(b.i32(), factor).result, b.constant(MANTISSA_WIDTH)).result
    power = b.select(b.compare("eq", bits, 0), b.constant(LEAST_POWER), bits)
    known = b.select(b.compare("eq", bits, EXPONENT_BITS), b.constant(NOT_A_NUMBER), power)
    return arith.BitcastOp(ir.F32Type.get(), known).result
