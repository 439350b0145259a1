"""The roles that move tiles and start products: load, mma, epilogue. Each runs on one thread."""

from typing import Protocol

from .. import emit as b
from ..core.problem import Problem, Value, WorkTile
from .key_slots import KeySlots
from .kv_source import VALUES, KVSource, Streamed, StreamedKV
from .paged_rows import CopiedTile
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

    Page entries are read one key tile ahead, after the copies of a tile have been issued: they
    arrive while `load` waits for the slots of the next tile.
    """
    tiles = problem.column_tiles(tile)

    def fill_values(copied: CopiedTile) -> None:
        slot = storage.v.acquire()
        source.load(VALUES, values_in(problem, slot), copied)
        b.commit(slot, "copy_engine")

    def iteration(index: Value, *entries: Value) -> list[Value]:
        copied = CopiedTile(tile, tiles.first_column(index), entries)
        storage.keys.fill(source, copied)
        fill_values(copied)
        return source.read_entries(tile, tiles, b.INT.add(index, 1)) if entries else []

    with b.when(tiles.any()):
        first = tiles.first_column(0)
        entries = source.read_entries(tile, tiles, 0)
        copied = CopiedTile(tile, first, entries)
        queries = storage.queries
        interleaved = storage.keys.filled if queries.count > 1 else 0

        def fill_queries(number: int) -> None:
            """The stage of the first query tile that goes with a stage of keys."""
            if number < interleaved:
                queries.fill(tile, 0, [number])

        storage.keys.fill(source, copied, after=fill_queries)
        for q_tile in range(problem.config.q_tiles):
            queries.fill(tile, q_tile, range(0 if q_tile else interleaved, queries.count))
        fill_values(copied)
        following = source.read_entries(tile, tiles, b.constant(1)) if entries else []
        b.loop(1, tiles.count, following, iteration)


def epilogue(problem: Problem, out: b.Ring, tile: WorkTile) -> None:
    """Writes the finished O tiles; rows past the end of the sequence are dropped."""
    for q_tile in range(problem.config.q_tiles):
        slot = out.wait(q_tile)
        position = problem.first_position(tile, q_tile)
        head = problem.query_tile(tile, q_tile).head
        problem.rows.store(slot, tile.results, head, position)
        b.release(slot, "copy_engine")


def load_queries(problem: Problem, storage: Streamed, tile: WorkTile) -> None:
    """Fills Q; one thread."""
    for q_tile in range(problem.config.q_tiles):
        slot = storage.q.acquire(q_tile)
        head, position = problem.query_tile(tile, q_tile).head, problem.first_position(tile, q_tile)
        problem.rows.load(slot, tile.queries, head, position)
        b.commit(slot, "copy_engine")


def load_streamed(problem: Problem, storage: Streamed, source: StreamedKV, tile: WorkTile) -> None:
    """Fills Q once, then the rings of K and V; one thread."""
    source.fill(storage, tile, lambda: load_queries(problem, storage, tile))


def values_in(problem: Problem, slot: Value) -> Value:
    """The tile of values [tile_n, v_columns] in a slot."""
    return b.view(slot, [problem.config.tile_n, problem.v_columns], problem.element)
