"""Rope of keys that is stored in 8 bits, and widened to the type of the other operands on the way.

Elements of 8 bits go through registers: warps of their own read the rows, wherever they lie,
multiply them by the factors of their positions, if there are any, and write the slot that products
read. So what is stored needs no place in shared memory, and no slot is read and written at a time:

```text
piece 0 1 .. 7 of tile n | 0 1 .. 7 of tile n + 1      a warp has 16 of 64 rows to a piece, four all
registers   e4m3 -> f16 -> f32 x factor -> bf16        a thread has 32 bytes of a piece
```
The two pieces that come next are read while one is written, and numbers of pages, which say where
those lie, one piece before. Rows behind the end of a sequence, and those of pages outside the pool,
become zeros without being read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import attn
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.operands.pages import Pages, page_size
from attn_mlir.schedules.operands.position_scales import PositionFactors
from attn_mlir.schedules.operands.sequences import KeySequences
from attn_mlir.schedules.operands.sequences import Sequence as Place
from attn_mlir.schedules.operands.storage import OperandStorage, StoredKeys
from attn_mlir.schedules.operands.widen import widened

PIECE_BYTES = 32  # of a thread: two reads of 16 bytes; with four, a single warp spills
AHEAD = 2  # pieces
WARP_LANES = 32


@dataclass(frozen=True)
class NarrowRope:
    """Where rope of 8 bits lies, and what it is multiplied by.

    Attributes:
      tensor: [sequences, rows, 1, columns], [rows, 1, columns] of all sequences, or a pool.
      first: the column at which rope begins.
      columns: of rope.
      sequences: where each sequence lies.
      pages: its pages; None without pages.
      factors: of each position; None without any.
    """

    tensor: Value
    first: int
    columns: int
    sequences: KeySequences
    pages: Pages | None
    factors: PositionFactors | None

    @classmethod
    def of(
        cls, storage: OperandStorage, keys: StoredKeys, arguments: Mapping[Value, Value]
    ) -> "NarrowRope":
        """The operand `k_rope` of `attn.mla`, in a kernel with these arguments."""
        factors = PositionFactors.of(storage, arguments)
        columns, first = attn.logical_type(storage.operand).shape[3], storage.first_column
        return cls(keys.tensor, first, columns, keys.sequences, keys.pages, factors)

    def places(self, tile: WorkTile) -> list[Place]:
        """Where the rows of a work tile's sequence lie, and its factors."""
        several = [self.sequences]
        if self.factors is not None:
            several.append(self.factors.sequences)
        found = [some.of(tile.batch, tile.queries) for some in several]
        return [Place(x.lead, x.start, tile.keys.length, False) for x in found]

    def find(self, tile: WorkTile, column: Value, count: int) -> list[Value]:
        """i32 [count]: the pages of keys from a column on, and those of their factors if they
        differ.
        """
        if self.pages is None:
            return []
        found = [self._page_of(self.pages, tile, column, count)]
        if self.factors is not None and self.factors.lists != self.pages.lists:
            found += self.factors.find(tile.batch, column, count)
        return found

    def read(
        self, places: Sequence[Place], column: Value, found: Sequence[Value], count: int
    ) -> list[Value]:
        """The rows of keys from a column on as they are stored, [count, columns], and their factors
        [count].

        Args:
          places: of the sequence, see `places`.
          found: what `find` found.
        """
        place, *other = places
        rows = self._rows(place, column, found, count)
        lead = [0, 0] if self.pages is not None else [*place.lead, place.start or 0]
        dims = [0, 1, 3] if self.pages is not None else [len(lead) - 1, len(lead) + 1]
        read = [b.load_rows(self.tensor, rows, self.columns, [*lead, 0, self.first], dims)]
        if self.factors is not None:
            group = self.first // self.factors.group
            zero = b.constant(0)
            read.append(self.factors.load(other[0], column, found[-1:], count, zero, group))
        return read

    def write(self, read: Sequence[Value], tile: Value, element: Any) -> None:
        """Writes what `read` gave, widened, into a shared tile [count, columns] of `element`."""
        f32 = ir.F32Type.get()
        piece, *factors = read
        values = b.map_elements(lambda x: arith.ExtFOp(f32, x).result, widened(piece), element=f32)
        for rows in factors:
            values = b.times_rows(values, rows)
        b.store(b.rounded(values, element), tile)

    def _page_of(self, pages: Pages, tile: WorkTile, column: Value, count: int) -> Value:
        def entry(number: Value) -> Value:
            position = b.INT.add(column, number)
            return pages.entry(tile.batch, b.INT.floordiv(position, page_size(pages.pool)))

        return b.generate(entry, [count], b.i32())

    def _rows(self, place: Place, column: Value, found: Sequence[Value], count: int) -> Value:
        """Numbers of the rows, from where the sequence or the pool begins; -1 for one that is not
        there.
        """
        nowhere = b.constant(-1)

        def in_row(number: Value) -> Value:
            position = b.INT.add(column, number)
            return b.select(b.compare("ult", position, place.length), position, nowhere)

        def in_page(page: Value, number: Value) -> Value:
            position, size = b.INT.add(column, number), page_size(self.tensor)
            begin = b.INT.mul(b.INT.floordiv(position, size), size)
            row = b.INT.add(b.INT.mul(page, size), b.INT.sub(position, begin))
            exists = b.compare("ult", page, b.extent(self.tensor, 0))
            exists = b.INT.both(exists, b.compare("ult", position, place.length))
            return b.select(exists, row, nowhere)

        if self.pages is None:
            return b.generate(in_row, [count], b.i32())
        return b.map_rows(in_page, found[0])


def piece_rows(warps: int, columns: int, tile_n: int) -> int:
    """Rows of a tile that so many warps hold at a time."""
    return min(warps * WARP_LANES * PIECE_BYTES // columns, tile_n)


def widen(problem: Problem, rope: NarrowRope, ring: b.Ring, tile: WorkTile, *, warps: int) -> None:
    """Fills the slots of rope of a work tile."""
    visited = problem.visited_tiles(tile)
    places = rope.places(tile)
    rows = piece_rows(warps, rope.columns, problem.config.tile_n)
    pieces = problem.config.tile_n // rows

    def column(turn: Value | int, piece: int) -> Value:
        later, number = divmod(piece, pieces)
        turn = b.INT.add(turn, later) if later else turn
        first = visited.first_column(turn)
        return b.INT.add(first, number * rows) if number else first

    def find(turn: Value | int, piece: int) -> list[Value]:
        return rope.find(tile, column(turn, piece), rows)

    def read(turn: Value | int, piece: int, found: Sequence[Value]) -> list[Value]:
        return rope.read(places, column(turn, piece), found, rows)

    def turn_of(turn: Value, *state: Value) -> list[Value]:
        found, queue = [*state[:told]], [state[n : n + parts] for n in starts]
        slot = ring.acquire()
        for piece in range(pieces):
            queue.append(tuple(read(turn, piece + AHEAD, found)))
            found = find(turn, piece + AHEAD + 1)
            rope.write(queue.pop(0), b.rows(slot, piece * rows, rows), problem.element)
        b.commit(slot, "warps")
        return [*found, *(value for some in queue for value in some)]

    with b.when(visited.any()):
        first = [read(0, n, find(0, n)) for n in range(AHEAD)]
        found, parts = find(0, AHEAD), len(first[0])
        told = len(found)
        starts = range(told, told + parts * AHEAD, parts)
        b.loop(0, visited.count, [*found, *(value for some in first for value in some)], turn_of)
