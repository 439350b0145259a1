"""Where the tiles of keys and values come from."""

from typing import Protocol

from . import builder as b
from .problem import Problem, Value, WorkTile


class KVSource(Protocol):
    """Where keys and values come from."""

    def load_keys(self, slot: Value, tile: WorkTile, first_column: Value) -> None:
        """Fills a ring slot [tile_n, head_dim] with the keys from `first_column` on."""
        ...

    def load_values(self, slot: Value, tile: WorkTile, first_column: Value) -> None:
        """Fills a ring slot [tile_n, head_dim] with the values from `first_column` on."""
        ...


class TensorKV:
    """Keys and values as rows of tensors, sequence by sequence; past a sequence's end reads 0."""

    def __init__(self, problem: Problem):
        self._problem = problem

    def _load(self, source: Value, slot: Value, tile: WorkTile, first_column: Value) -> None:
        """Past the end of the sequence, and past the head size, the tile is zero."""
        head = self._problem.queries.kv_head(tile.head)
        keys = tile.keys
        row = len(keys.lead)
        coords = [*keys.lead, keys.row(first_column), head, 0]
        b.copy_in(keys.within(source, row), slot, coords, [row, row + 2])

    def load_keys(self, slot: Value, tile: WorkTile, first_column: Value) -> None:
        """Copies a box of K."""
        self._load(self._problem.k, slot, tile, first_column)

    def load_values(self, slot: Value, tile: WorkTile, first_column: Value) -> None:
        """Copies a box of V."""
        self._load(self._problem.v, slot, tile, first_column)
