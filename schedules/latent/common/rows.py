"""The rows of a latent cache: rows of 16 bits, or of 8 bits with scales that warps upcast.

The copy engine copies rows of 16 bits as they are (`PlainRows`). Rows of 8 bits go through
registers (`ScaledRows`): threads load the stored row, upcast it and write the operand's tile, so
that stored rows need no shared memory. A block is loaded while the one before it is written.

```text
a row, v32    512 of 8 bits | 4 scales | 64 of 16 bits
               |   chunks of 64 columns, 16 of them in a thread: e4m3 -> f16 -> f32 x scale -> bf16
tile          | 0 .. 63 | 64 .. 127 | ... | 448 .. 511 | 512 .. 575 |
```
A chunk fills one line of 128 bytes in each row of the tile. Of eight adjacent threads, which write
128 bytes at a time, four have one row and four the next: their addresses differ in the lowest bit
of the row, so every bank is written once. With chunks of 128 columns eight threads have one row, in
two lines, and every bank would be written twice.

If a chunk has several scales, a thread loads the scale of its columns of each chunk (`ws.repeat`);
if several chunks share one, it is loaded once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.operands.storage import OperandStorage
from attn_mlir.schedules.operands.widen import EXPONENT_BITS, MANTISSA_WIDTH, upcast

Value = Any

LOADERS = 4  # threads that gather rows of a tile: copies of one thread are 48 clocks apart
UPCAST_WARPS = 8  # at 64 rows of 656 bytes a thread has 10 loads of 16 bytes in flight
PAIR_WARPS = 4  # of keys, and of values: 20 and 16 loads of a thread are a block of 8 bits
CHUNK = 64  # columns of 16 bits in 128 bytes
ABSENT_ROW = (1 << 31) - 1  # a row that no cache has
PAGED_DIMS = 2  # dimensions that the rows of pages run along
LEAST_POWER = 0x400000  # bits of 2^-127, the smallest scale of 8 bits
NOT_A_NUMBER = 0x7FC00000  # bits of a NaN


@dataclass(frozen=True)
class PlainRows:
    """Rows in the element type of products.

    Attributes:
      tensor: [rows, columns].
      loaders: threads that copy parts of a tile of keys.
      prefetched: index blocks that the producer reads ahead.
    """

    tensor: Value
    loaders: ClassVar[int] = LOADERS
    prefetched: ClassVar[int] = 0

    def count(self) -> Value:
        """Rows of the cache."""
        return b.extent(self.tensor, 0)


@dataclass(frozen=True)
class ScaledRows:
    """Rows of 8-bit columns with scales, then 16-bit columns; see `attn.latent_rows`.

    Attributes:
      fp8, scales, plain: tensors [rows, columns], [pages, page, columns] or [pages, page, 1,
        columns] of the 8-bit columns, their scales and the 16-bit columns; None for none.
      group: 8-bit columns that share a scale.
      loaders: 0, as warps write the tiles.
      prefetched: as of `PlainRows`.
    """

    fp8: Value
    scales: Value | None
    plain: Value | None
    group: int
    loaders: ClassVar[int] = 0
    prefetched: ClassVar[int] = 1

    def count(self) -> Value:
        """Rows of the cache."""
        rows = b.extent(self.fp8, 0)
        return b.INT.mul(rows, self.page()) if self._outer > 1 else rows

    def page(self) -> Value | int:
        """Rows of a page."""
        return extent_of(self.fp8, 1)

    @property
    def _outer(self) -> int:
        """Dimensions in front of the columns."""
        return ir.MemRefType(self.fp8.type).rank - 1

    @property
    def columns(self) -> int:
        """Columns of a row."""
        return self._columns + (0 if self.plain is None else _columns(self.plain))

    def is_uniform(self, width: int, count: int) -> bool:
        """Whether `count` times `width` adjacent columns are stored in the same way."""
        is_whole = self.scales is None or width % self.group == 0
        return width * count <= self._columns and is_whole

    def layouts(self, columns: range) -> int:
        """Number of layouts of the row indices that `read` takes."""
        return sum(map(bool, self._split(columns)))

    def read(
        self, rows: Sequence[Value], columns: range, shift: Value | None = None
    ) -> list[Value]:
        """Loads some columns of rows as they are stored: fragments for `upcast_rows`.

        Args:
          rows: [n] of i32, rows of the cache, for each layout; negative ones and `ABSENT_ROW` are
            rows of zeros.
          columns: whole chunks.
          shift: i32, the offset of the columns in multiples of their number, if uniform.
        """
        fp8_columns, plain_columns = self._split(columns)
        fragments: list[Value] = []
        if fp8_columns:
            for column in fp8_columns[::CHUNK]:
                first = _shifted(column, shift, len(columns))
                fragments.append(self._part(self.fp8, rows[0], first, CHUNK))
            if self.scales is not None:
                fragments += self._scales(rows[0], fp8_columns, shift)
        if plain_columns:  # threads hold other rows of these
            fragments.append(
                self._part(self.plain, rows[-1], plain_columns.start, len(plain_columns))
            )
        return fragments

    def upcast_rows(self, fragments: Sequence[Value], tile: Value, columns: range) -> None:
        """Writes the columns to a shared tile of bf16, from the `fragments` that `read` returns."""
        fp8_columns, plain_columns = self._split(columns)
        count = len(fp8_columns) // CHUNK
        column_chunks, scales = fragments[:count], list(fragments[count:])
        plain = [scales.pop()] if plain_columns else []
        for number, chunk in enumerate(column_chunks):
            first = number * CHUNK
            values = self._values(chunk, scales, fp8_columns.start, fp8_columns.start + first)
            b.store(values, b.columns(tile, first, CHUNK))
        for chunk in plain:
            b.store(chunk, b.columns(tile, len(fp8_columns), len(plain_columns)))

    def _split(self, columns: range) -> tuple[range, range]:
        """Splits a column range into its 8-bit part and its 16-bit part, numbered from 0."""
        end = self._columns
        fp8_columns = range(columns.start, min(columns.stop, end))
        return fp8_columns, range(max(columns.start, end) - end, columns.stop - end)

    def _groups(self, fp8_columns: range) -> range:
        """The groups of 8-bit columns that share scales."""
        return range(fp8_columns.start // self.group, (fp8_columns.stop - 1) // self.group + 1)

    @property
    def _columns(self) -> int:
        """Columns of 8 bits."""
        return _columns(self.fp8)

    def _part(self, tensor: Value, rows: Value, first: Value | int, count: int) -> Value:
        """Loads `count` columns of rows from one of the cache's tensors."""
        along = [*range(min(self._outer, PAGED_DIMS)), self._outer]
        return b.load_rows(tensor, rows, count, [0] * self._outer + [first], along)

    @property
    def _in_runs(self) -> bool:
        """Whether a chunk has several scales, none of which is another chunk's."""
        return self.group < CHUNK and CHUNK % self.group == 0

    def _scales(self, rows: Value, fp8_columns: range, shift: Value | None) -> list[Value]:
        """The scales of some columns, f32, 0 for absent rows: [n] per group, or [n, groups] per
        chunk; `shift` is as of `read`.
        """
        f32 = ir.F32Type.get()

        def shifted(number: int) -> Value | int:
            return _shifted(number, shift, len(fp8_columns) // self.group)

        def of_group(number: int) -> Value:
            group = shifted(number)
            return b.map_rows(lambda row, _: self._scale(row, group), rows, element=f32)

        def of_chunk(first: int, count: int) -> Value:
            begin = shifted(first)

            def scale(row: Value, _: Value, number: Value) -> Value:
                return self._scale(row, b.INT.add(number, begin))

            return b.map_coordinates(scale, b.broadcast(rows, count), element=f32)

        if self._in_runs:
            count = CHUNK // self.group
            return [of_chunk(column // self.group, count) for column in fp8_columns[::CHUNK]]
        return [of_group(number) for number in self._groups(fp8_columns)]

    def _scale(self, row: Value, number: Value | int) -> Value:
        """The scale of a group of a row."""
        coords: list[Value | int] = [row]
        if self._outer > 1:
            page = self.page()
            outer = b.INT.floordiv(row, page)
            coords = [outer, b.INT.sub(row, b.INT.mul(outer, page))]
        coords += [0] * (self._outer - len(coords))  # the one head
        scale = _in_f32(b.element(self.scales, [*coords, number]))
        return b.select(b.compare("ult", row, ABSENT_ROW), scale, b.f32_constant(0.0))

    def _values(self, chunk: Value, scales: Sequence[Value], start: int, first: int) -> Value:
        """The columns of a chunk from `first` on, times their scales, rounded to bf16; `scales[0]`
        is that of column `start`.
        """
        values = b.map_elements(_extended, upcast(chunk), element=ir.F32Type.get())
        if scales:
            values = b.map_elements(b.fmul, values, self._of_columns(scales, start, first))
        return b.rounded(values, ir.BF16Type.get())

    def _of_columns(self, scales: Sequence[Value], start: int, first: int) -> Value:
        """The scales of each column of a chunk; arguments as of `_values`."""
        if self._in_runs:
            return b.repeat_columns(scales[(first - start) // CHUNK], CHUNK)
        first_group = start // self.group
        return self._per_column(
            [scales[n - first_group] for n in self._groups(range(first, first + CHUNK))]
        )

    def _per_column(self, scales: Sequence[Value]) -> Value:
        """The scales of a chunk's groups for each of its columns."""
        result = b.broadcast(scales[0], CHUNK)
        for number, other in enumerate(scales[1:], 1):

            def selected(
                before: Value,
                after: Value,
                _: Value,
                column: Value,
                begin: int = number * self.group,
            ) -> Value:
                return b.select(b.compare("slt", column, begin), before, after)

            result = b.map_coordinates(selected, result, b.broadcast(other, CHUNK))
        return result


Source = PlainRows | ScaledRows


def source_of(storage: OperandStorage, arguments: Mapping[Value, Value]) -> Source:
    """The source of an operand's rows; `arguments` maps arguments to the kernel's."""
    if (owner := storage.latent_rows) is None:
        return PlainRows(arguments[storage.operand])
    scales, plain = (
        next((arguments[x] for x in some), None) for some in (owner.scales, owner.wide)
    )
    return ScaledRows(arguments[owner.narrow], scales, plain, owner.group.value)


def extent_of(tensor: Value, dim: int) -> Value | int:
    """An extent of a tensor; a number if it is static."""
    kind = ir.MemRefType(tensor.type)
    return b.extent(tensor, dim) if kind.is_dynamic_dim(dim) else kind.get_dim_size(dim)


def _shifted(number: int, shift: Value | None, by: int) -> Value | int:
    return number if shift is None else b.INT.add(b.INT.mul(shift, by), number)


def _columns(tensor: Value) -> int:
    return list(ir.MemRefType(tensor.type).shape)[-1]


def _extended(x: Value) -> Value:
    return arith.ExtFOp(ir.F32Type.get(), x).result


def _in_f32(scale: Value) -> Value:
    """A stored scale as f32; e8m0: e is 2^(e - 127), and 255 is NaN."""
    if isinstance(scale.type, ir.F32Type):
        return scale
    bits = arith.ShLIOp(arith.ExtUIOp(b.i32(), scale).result, b.constant(MANTISSA_WIDTH)).result
    power = b.select(b.compare("eq", bits, 0), b.constant(LEAST_POWER), bits)
    value = b.select(b.compare("eq", bits, EXPONENT_BITS), b.constant(NOT_A_NUMBER), power)
    return arith.BitcastOp(ir.F32Type.get(), value).result
