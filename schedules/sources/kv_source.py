"""Sources of the tiles of keys and values, or of other columns of a work tile."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from attn_mlir.dialect import ws

from .. import emit as b
from ..core.column_tiles import ColumnTiles
from ..core.problem import Problem, Value, WorkTile
from ..core.tile_rows import column_boxes, head_in
from ..operands.pages import Pages
from ..operands.storage import StoredKeys
from .lookahead import each_iteration
from .paged_rows import CopiedTile, PagedRows

Operand = Literal["keys", "values", "rope", "queries", "output_gradients"]
KEYS: Operand = "keys"
VALUES: Operand = "values"
ROPE: Operand = "rope"  # columns of keys shared by all heads, if stored apart
QUERIES: Operand = "queries"
OUTPUT_GRADIENTS: Operand = "output_gradients"


class KVSource(Protocol):
    """Keys and values that the copy engine copies into slots.

    `read_entries` reads the page entries of a tile before its copies wait for their slots.
    """

    @abstractmethod
    def read_entries(self, tile: WorkTile, keys: ColumnTiles, index: Value | int) -> list[Value]:
        """The page entries of tile `index`, i32 each; any values past the last tile.

        It is called only if there is a tile.
        """
        ...

    @abstractmethod
    def load(self, operand: Operand, slot: Value, tile: CopiedTile, *, column: int = 0) -> None:
        """Fills a ring slot [tile_n, columns] with the keys or values of a tile.

        Args:
          column: first column of the rows that the slot holds.
        """
        ...


class Streamed(Protocol):
    """The rings of a kernel that streams keys and values.

    Attributes:
      q, k, v: rings of queries, keys and values; the last two may be one.
      columns: columns of a tile of values.
    """

    q: b.Ring
    k: b.Ring
    v: b.Ring
    columns: int


class StreamedKV(Protocol):
    """Keys and values that fill their rings, by the copy engine or by threads.

    Attributes:
      by_threads: whether all threads of some warps copy, 16 bytes at a time; else one thread starts
        copies of the copy engine.
    """

    by_threads: ClassVar[bool]

    @property
    @abstractmethod
    def box_rows(self) -> int:
        """Rows of each copy into a slot."""
        ...

    @property
    @abstractmethod
    def lists(self) -> tuple[Value, ...]:
        """The index arrays that locate keys and values."""
        ...

    @abstractmethod
    def fetch(self, tile: WorkTile, first_column: Value) -> None:
        """Prefetches keys and values from `first_column` on to L2, unless an index locates them."""
        ...

    @abstractmethod
    def fill(self, rings: Streamed, tile: WorkTile, begin: Callable[[], None]) -> None:
        """Fills the rings with the key tiles of a work tile, in the order K(0) V(0) K(1) V(1) ...

        Args:
          begin: emits the copies before the first tile.
        """
        ...


class Filled(NamedTuple):
    """A ring that an operand streams through, in tiles of some columns."""

    operand: Operand
    ring: b.Ring
    columns: int


class CopiedKV(KVSource, StreamedKV):
    """Keys and values in boxes of the copy engine: a `KVSource` and a `StreamedKV`."""

    by_threads: ClassVar[bool] = False

    def __init__(self, problem: Problem):
        self._problem = problem

    def fill(self, rings: Streamed, tile: WorkTile, begin: Callable[[], None]) -> None:
        """One thread starts the copies; index arrays are read two key tiles ahead."""
        problem = self._problem
        if problem.shares_rows:
            self._fill_tiles([Filled(VALUES, rings.k, problem.columns)], tile, begin)
            return
        keys, values = (
            Filled(KEYS, rings.k, problem.columns),
            Filled(VALUES, rings.v, rings.columns),
        )
        self._fill_tiles([keys, values], tile, begin)

    def fill_rings(self, operands: Sequence[Filled], tile: WorkTile) -> None:
        """Fills the rings of operands tile by tile, each tile in the order of the operands.

        The tiles of several heads follow head by head. One thread starts the copies.
        """

        def of_head(tile: WorkTile) -> list[Value]:
            self._fill_tiles(operands, tile, lambda: None)
            return []

        self._problem.over_column_heads(tile, [], of_head)

    def _fill_tiles(
        self, operands: Sequence[Filled], tile: WorkTile, begin: Callable[[], None]
    ) -> None:
        problem = self._problem
        config, tiles = problem.config, problem.column_tiles(tile)

        def read_entries(index: Value | int) -> list[Value]:
            return self.read_entries(tile, tiles, index)

        def fill(index: Value | int, entries: Sequence[Value], *, is_whole: bool) -> None:
            copied = CopiedTile(tile, tiles.first_column(index), entries, is_whole)
            for operand, ring, columns in operands:
                slot = ring.acquire()
                self.load(operand, as_filled(slot, config.tile_n, columns, problem.stored), copied)
                b.commit(slot, "copy_engine")

        each_iteration(tiles, read_entries if self.lists else None, fill, begin)


class TensorRows(CopiedKV):
    """Operands as rows of tensors, sequence by sequence; past a sequence's end reads 0."""

    def __init__(
        self, problem: Problem, tensors: Mapping[Operand, tuple[Value, ...]] | None = None
    ):
        """Reads these tensors, by operand, whose columns are concatenated; K and V by default."""
        super().__init__(problem)
        self._tensors = {KEYS: problem.keys, VALUES: (problem.v,)} if tensors is None else tensors

    @property
    def box_rows(self) -> int:
        """Those of a tile."""
        return self._problem.config.tile_n

    @property
    def lists(self) -> tuple[Value, ...]:
        """None."""
        return ()

    def fetch(self, tile: WorkTile, first_column: Value) -> None:
        """Boxes of K and V."""
        problem, keys = self._problem, tile.keys
        head, row = problem.column_head(tile), len(keys.lead)
        coords = [*keys.lead, keys.row(first_column), head, 0]
        for source, columns in ((problem.k, problem.columns), (problem.v, problem.v_columns)):
            kind = b.tile([problem.config.tile_n, columns], problem.stored, "shared")
            b.prefetch_box(source, kind, coords, [row, row + 2])

    def read_entries(self, tile: WorkTile, keys: ColumnTiles, index: Value | int) -> list[Value]:
        """Nothing has to be read."""
        return []

    def load(self, operand: Operand, slot: Value, tile: CopiedTile, *, column: int = 0) -> None:
        """Copies a box of each tensor of an operand; past the end of the sequence, and past the
        head size, it is zero.
        """
        _, rows = self._problem.sequences(tile.work)
        head, row = self._problem.column_head(tile.work), len(rows.lead)
        place, tensors = [*rows.lead, rows.row(tile.first_column)], self._tensors[operand]
        for tensor, first, part in column_boxes(slot, tensors, column):
            coords = [*place, head_in(tensor, tensors, head), first]
            b.copy_in(rows.within(tensor, row), part, coords, [row, row + 2])


class PagedKV(CopiedKV):
    """Keys and values in pages.

    Keys past the sequence have any values, since the mask hides their scores; values past it are
    zero, as their product with a probability of 0 must be 0.
    """

    def __init__(self, problem: Problem, keys: Pages, values: Pages):
        """Reads the pages of keys and of values, which have one size."""
        super().__init__(problem)
        self._keys, self._values = (PagedRows(x, problem.config.tile_n) for x in (keys, values))
        self._lists = (*keys.lists, *values.lists)
        self._are_together = keys.lists == values.lists

    @property
    def box_rows(self) -> int:
        """Rows of each copy."""
        return self._keys.box_rows

    @property
    def lists(self) -> tuple[Value, ...]:
        """Those of keys and of values."""
        return self._lists

    def fetch(self, tile: WorkTile, first_column: Value) -> None:
        """Does nothing: pages are located by entries."""

    def read_entries(self, tile: WorkTile, keys: ColumnTiles, index: Value | int) -> list[Value]:
        """The entry for each copy of keys, then of values unless both share their entries.

        Entries are not checked here: each load is awaited by its own copy only.
        """
        column = keys.first_column(index)
        entries = self._keys.read_entries(tile, column)
        return entries if self._are_together else entries + self._values.read_entries(tile, column)

    def load(self, operand: Operand, slot: Value, tile: CopiedTile, *, column: int = 0) -> None:
        """Copies boxes of K, whole ones, or of V that end with the sequence."""
        head, entries = (lambda: self._problem.column_head(tile.work)), tile.entries
        if operand == KEYS:
            keys = tile._replace(entries=entries[: self._keys.copies])
            self._keys.load(slot, keys, head, column=column)
            return
        values = tile._replace(entries=entries[-self._values.copies :])
        if tile.is_whole:
            self._values.load(slot, values, head)
        else:
            self._values.load_until_end(slot, values, head)


def copied_kv(problem: Problem, keys: StoredKeys, values: StoredKeys) -> CopiedKV:
    """The source of keys and values for the copy engine: pages, or tensors."""
    if keys.pages is None or values.pages is None:
        return TensorRows(problem)
    return PagedKV(problem, keys.pages, values.pages)


def as_filled(slot: Value, rows: int, columns: int, element: Any) -> Value:
    """A slot as a tile of these rows and columns, or as its boxes side by side."""
    box_rows, _ = ws.TileType(slot.type).shape
    return b.view(slot, [box_rows, rows // box_rows * columns], element)
