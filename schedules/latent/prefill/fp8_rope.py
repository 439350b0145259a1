"""Rope of keys that is stored in 8 bits, and upcast to the type of the other operands.

Elements of 8 bits go through registers: helper warps load the rows, multiply them by the scales of
their positions, if there are any, and write the operand's slot. So stored rows need no shared
memory, and no slot is converted in place:

```text
chunk 0 1 .. 7 of tile n | 0 1 .. 7 of tile n + 1      a warp has 16 of 64 rows to a chunk, four all
registers   e4m3 -> f16 -> f32 x scale -> bf16         a thread has 32 bytes of a chunk
```
The next two chunks are loaded while one is written, and their page numbers one chunk earlier. Rows
past the end of a sequence, and rows of pages outside the pool, become zeros without a load.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import attn
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.operands.pages import Pages, page_size
from attn_mlir.schedules.operands.position_scales import PositionScales
from attn_mlir.schedules.operands.sequences import KeySequences
from attn_mlir.schedules.operands.sequences import Sequence as Positions
from attn_mlir.schedules.operands.storage import OperandStorage, StoredKeys
from attn_mlir.schedules.operands.widen import upcast

CHUNK_BYTES = 32  # of a thread: two reads of 16 bytes; with four, a single warp spills
PREFETCHED = 2  # pieces
WARP_LANES = 32


@dataclass(frozen=True)
class Fp8Rope:
    """The storage of rope of 8 bits, and its scales.

    Attributes:
      tensor: [sequences, rows, 1, columns], [rows, 1, columns] of all sequences, or a pool.
      first: the first column of rope.
      columns: of rope.
      sequences: its sequences.
      pages: its pages; None without pages.
      scales: scales of positions; None without any.
    """

    tensor: Value
    first: int
    columns: int
    sequences: KeySequences
    pages: Pages | None
    scales: PositionScales | None

    @classmethod
    def of(
        cls, storage: OperandStorage, keys: StoredKeys, arguments: Mapping[Value, Value]
    ) -> "Fp8Rope":
        """The operand `k_rope` of `attn.mla`, in a kernel with these arguments."""
        scales = PositionScales.of(storage, arguments)
        columns, first = attn.logical_type(storage.operand).shape[3], storage.first_column
        return cls(keys.tensor, first, columns, keys.sequences, keys.pages, scales)

    def sequences_of(self, tile: WorkTile) -> list[Positions]:
        """The sequence of a work tile in the rows, and in the scales if there are any."""
        operands = [self.sequences]
        if self.scales is not None:
            operands.append(self.scales.sequences)
        sequences = [some.of(tile.batch, tile.queries) for some in operands]
        return [Positions(x.lead, x.start, tile.keys.length, False) for x in sequences]

    def read_entries(self, tile: WorkTile, column: Value, count: int) -> list[Value]:
        """i32 [count]: the pages of keys from a column on, and of their scales if they differ."""
        if self.pages is None:
            return []
        pages = [self._page_of(self.pages, tile, column, count)]
        if self.scales is not None and self.scales.lists != self.pages.lists:
            pages += self.scales.read_entries(tile.batch, column, count)
        return pages

    def read(
        self, sequences: Sequence[Positions], column: Value, pages: Sequence[Value], count: int
    ) -> list[Value]:
        """The rows of keys from a column on as they are stored, [count, columns], and their scales
        [count].

        Args:
          sequences: of the sequence, see `sequences`.
          pages: what `read_entries` found.
        """
        rows_at, *scales_at = sequences
        rows = self._rows(rows_at, column, pages, count)
        lead = [0, 0] if self.pages is not None else [*rows_at.lead, rows_at.start or 0]
        dims = [0, 1, 3] if self.pages is not None else [len(lead) - 1, len(lead) + 1]
        read = [b.load_rows(self.tensor, rows, self.columns, [*lead, 0, self.first], dims)]
        if self.scales is not None:
            group = self.first // self.scales.group
            zero = b.constant(0)
            read.append(self.scales.load(scales_at[0], column, pages[-1:], count, zero, group))
        return read

    def write(self, read: Sequence[Value], tile: Value, element: Any) -> None:
        """Writes what `read` gave, widened, into a shared tile [count, columns] of `element`."""
        f32 = ir.F32Type.get()
        rope, *scales = read
        values = b.map_elements(lambda x: arith.ExtFOp(f32, x).result, upcast(rope), element=f32)
        for rows in scales:
            values = b.times_rows(values, rows)
        b.store(b.rounded(values, element), tile)

    def _page_of(self, pages: Pages, tile: WorkTile, column: Value, count: int) -> Value:
        def entry(number: Value) -> Value:
            position = b.INT.add(column, number)
            return pages.entry(tile.batch, b.INT.floordiv(position, page_size(pages.pool)))

        return b.generate(entry, [count], b.i32())

    def _rows(
        self, sequence: Positions, column: Value, pages: Sequence[Value], count: int
    ) -> Value:
        """Row indices in the sequence or the pool; -1 for absent rows."""
        nowhere = b.constant(-1)

        def in_row(number: Value) -> Value:
            position = b.INT.add(column, number)
            return b.select(b.compare("ult", position, sequence.length), position, nowhere)

        def in_page(page: Value, number: Value) -> Value:
            position, size = b.INT.add(column, number), page_size(self.tensor)
            begin = b.INT.mul(b.INT.floordiv(position, size), size)
            row = b.INT.add(b.INT.mul(page, size), b.INT.sub(position, begin))
            exists = b.compare("ult", page, b.extent(self.tensor, 0))
            exists = b.INT.both(exists, b.compare("ult", position, sequence.length))
            return b.select(exists, row, nowhere)

        if self.pages is None:
            return b.generate(in_row, [count], b.i32())
        return b.map_rows(in_page, pages[0])


def chunk_rows(warps: int, columns: int, tile_n: int) -> int:
    """Rows of a tile that `warps` warps hold at a time."""
    return min(warps * WARP_LANES * CHUNK_BYTES // columns, tile_n)


def upcast_rope(
    problem: Problem, rope: Fp8Rope, ring: b.Ring, tile: WorkTile, *, warps: int
) -> None:
    """Fills the slots of rope of a work tile."""
    key_tiles = problem.column_tiles(tile)
    sequences = rope.sequences_of(tile)
    rows = chunk_rows(warps, rope.columns, problem.config.tile_n)
    chunks = problem.config.tile_n // rows

    def column(turn: Value | int, chunk: int) -> Value:
        next_tile, number = divmod(chunk, chunks)
        turn = b.INT.add(turn, next_tile) if next_tile else turn
        first = key_tiles.first_column(turn)
        return b.INT.add(first, number * rows) if number else first

    def find(turn: Value | int, chunk: int) -> list[Value]:
        return rope.read_entries(tile, column(turn, chunk), rows)

    def read(turn: Value | int, chunk: int, pages: Sequence[Value]) -> list[Value]:
        return rope.read(sequences, column(turn, chunk), pages, rows)

    def iteration(turn: Value, *state: Value) -> list[Value]:
        page_numbers, queue = [*state[:page_count]], [state[n : n + width] for n in starts]
        slot = ring.acquire()
        for chunk in range(chunks):
            queue.append(tuple(read(turn, chunk + PREFETCHED, page_numbers)))
            page_numbers = find(turn, chunk + PREFETCHED + 1)
            rope.write(queue.pop(0), b.rows(slot, chunk * rows, rows), problem.element)
        b.commit(slot, "warps")
        return [*page_numbers, *(value for some in queue for value in some)]

    with b.when(key_tiles.any()):
        first = [read(0, n, find(0, n)) for n in range(PREFETCHED)]
        page_numbers, width = find(0, PREFETCHED), len(first[0])
        page_count = len(page_numbers)
        starts = range(page_count, page_count + width * PREFETCHED, width)
        b.loop(
            0,
            key_tiles.count,
            [*page_numbers, *(value for some in first for value in some)],
            iteration,
        )
