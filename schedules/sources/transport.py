"""The roles that move tiles and start products: load, mma, epilogue. Each runs on one thread."""

from collections.abc import Sequence
from typing import Any, Protocol

from attn_mlir.dialect import ws

from .. import emit as b
from ..core.problem import Problem, Value, WorkTile
from .key_slots import KeySlots
from .kv_source import KEYS, VALUES, KVSource, Side
from .listed_copies import GatheredKV
from .lookahead import each_turn
from .query_slots import QuerySlots


class Loaded(Protocol):
    """The rings that `load` fills, of queries, keys and values; those may be one ring."""

    @property
    def queries(self) -> QuerySlots:
        """Slots of queries."""
        ...

    @property
    def keys(self) -> KeySlots:
        """Slots of keys."""
        ...

    @property
    def v(self) -> b.Ring:
        """Slots of values."""
        ...


def load(problem: Problem, storage: Loaded, source: KVSource, tile: WorkTile) -> None:
    """Fills Q once, and the rings of K and V in the order K(0) Q V(0) K(1) V(1) ...

    Where pages lie is read one key tile ahead, as soon as the copies of a tile have been issued: the
    numbers arrive while `load` waits for the slots of the next tile.
    """
    visited = problem.key_tiles(tile)

    def fill_values(column: Value, found: Sequence[Value]) -> None:
        slot = storage.v.acquire()
        source.load(VALUES, values_in(problem, slot), tile, column, found)
        b.commit(slot, "copy_engine")

    def turn_of(turn: Value, *found: Value) -> list[Value]:
        column = visited.first_column(turn)
        storage.keys.fill(source, tile, column, found)
        fill_values(column, found)
        return source.find(tile, visited, b.INT.add(turn, 1)) if found else []

    with b.when(visited.any()):
        first = visited.first_column(0)
        found = source.find(tile, visited, 0)
        queries = storage.queries
        between = storage.keys.filled if queries.count > 1 else 0

        def fill_queries(number: int) -> None:
            """The part of the first query tile that the first product reads with a part of keys."""
            if number < between:
                queries.fill(tile, 0, [number])

        storage.keys.fill(source, tile, first, found, behind=fill_queries)
        for way in range(problem.config.q_tiles):
            queries.fill(tile, way, range(0 if way else between, queries.count))
        fill_values(first, found)
        following = source.find(tile, visited, b.constant(1)) if found else []
        b.loop(1, visited.count, following, turn_of)


def epilogue(problem: Problem, out: b.Ring, tile: WorkTile) -> None:
    """Writes the finished O tiles; rows past the end of the sequence are dropped."""
    for way in range(problem.config.q_tiles):
        slot = out.wait(way)
        position = problem.first_position(tile, way)
        head = problem.query_tile(tile, way).head
        problem.queries.store(slot, tile.results, head, position)
        b.release(slot, "copy_engine")


class Streamed(Protocol):
    """The rings that `stream` fills.

    Attributes:
      q, k, v: of queries, of keys and of values; the last two may be one.
      columns: of a tile of values.
    """

    q: b.Ring
    k: b.Ring
    v: b.Ring
    columns: int


def load_queries(problem: Problem, storage: Streamed, tile: WorkTile) -> None:
    """Fills Q; one thread."""
    for way in range(problem.config.q_tiles):
        slot = storage.q.acquire(way)
        head, position = problem.query_tile(tile, way).head, problem.first_position(tile, way)
        problem.queries.load(slot, tile.queries, head, position)
        b.commit(slot, "copy_engine")


def gather(problem: Problem, storage: Streamed, source: GatheredKV, tile: WorkTile) -> None:
    """Fills the ring of rows that are keys and values, as lists name them; some warps.

    Entries are read a turn ahead.
    """
    config, visited = problem.config, problem.key_tiles(tile)

    def entries(turn: Value | int) -> Value:
        return source.entries(tile, visited.first_column(turn))

    def turn_of(turn: Value, found: Value) -> list[Value]:
        slot = storage.k.acquire()
        source.gather(b.view(slot, [config.tile_n, problem.columns], problem.stored), found)
        b.commit(slot, "thread_copies")
        return [entries(b.INT.add(turn, 1))]

    b.loop(0, visited.count, [entries(0)], turn_of)


def stream(problem: Problem, storage: Streamed, source: KVSource, tile: WorkTile) -> None:
    """Fills Q once, then the rings of K and V in the order K(0) V(0) K(1) V(1) ...; one thread."""
    config, visited = problem.config, problem.key_tiles(tile)

    def find(turn: Value | int) -> list[Value]:
        return source.find(tile, visited, turn)

    def fill(turn: Value | int, found: Sequence[Value], *, is_whole: bool) -> None:
        column = visited.first_column(turn)
        both: list[tuple[Side, b.Ring, int]] = [(VALUES, storage.k, problem.columns)]
        if not problem.shares_rows:
            both = [(KEYS, storage.k, problem.columns), (VALUES, storage.v, storage.columns)]
        for side, ring, columns in both:
            slot = ring.acquire()
            part = as_filled(slot, config.tile_n, columns, problem.stored)
            source.load(side, part, tile, column, found, is_whole=is_whole)
            b.commit(slot, "copy_engine")

    each_turn(
        visited,
        find if source.reads else None,
        fill,
        lambda: load_queries(problem, storage, tile),
    )


def as_filled(slot: Value, rows: int, columns: int, element: Any) -> Value:
    """A slot as a tile of these rows and columns, or as its boxes side by side."""
    box_rows, _ = ws.TileType(slot.type).shape
    return b.view(slot, [box_rows, rows // box_rows * columns], element)


def values_in(problem: Problem, slot: Value) -> Value:
    """The tile of values [tile_n, v_columns] in a slot."""
    return b.view(slot, [problem.config.tile_n, problem.v_columns], problem.element)
