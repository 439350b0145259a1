"""The gradients of queries beside those of keys and values: products with dS, added to memory.

The groups that attend write dS of their keys to rings, [keys, queries] each. What multiplies them
with the keys is a group of its own, or these groups again, each for some columns of the keys; one
thread then adds the products to memory by the copy engine.
"""

from collections.abc import Callable
from typing import Protocol

from attn_mlir.dialect._mlir import ir
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import ColumnTiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile

PART_COLUMNS = 64  # of dQ that a group multiplies at once: 32 registers of a thread
AHEAD = 2  # tiles of dS: a group of its own may multiply one while the next is computed


class QuerySums(Protocol):
    """What the groups that attend do for the gradients of queries, once for each tile."""

    def hand_over(self, score_gradients: Value, group: Value) -> None:
        """Writes dS of the group, [keys, queries] as products read it."""
        ...

    def issue(self, keys: Value, group: Value) -> int:
        """Issues products with the keys of all groups, if this is for them to do; their number."""
        ...

    def finish(self, group: Value) -> None:
        """Waits for these products, behind which another was issued, and hands them over."""
        ...


class _HandedOver:
    """dS in slots of its own for each group, and products in a ring.

    Attributes:
      products: the ring of products, [queries, columns] f32; `parts` instances for all columns.
    """

    def __init__(self, problem: Problem, *, stages: int, parts: int):
        config = problem.config
        self.parts, self._groups, self._rows = parts, config.q_tiles, config.tile_m
        weights = b.tile([config.tile_m, config.tile_n], problem.element, "shared")
        self._weights = b.Ring("ds", weights, stages=stages, instances=self._groups)
        self._shape = config.tile_n, problem.columns // parts
        product = b.tile([*self._shape], ir.F32Type.get(), "shared")
        self.products = b.Ring("dq", product, instances=parts)

    def hand_over(self, score_gradients: Value, group: Value) -> None:
        """As of `QuerySums`."""
        slot = self._weights.acquire(group)
        b.store(score_gradients, slot)
        b.commit(slot, "warps")

    def _wait(self) -> list[Value]:
        """The dS of all groups."""
        return [self._weights.wait(group) for group in range(self._groups)]

    def _product(self, weights: list[Value], keys: Value, columns: int) -> Value:
        """dS K over the keys of all groups, for some columns of these; in flight."""
        product: Value = b.fill([self._shape[0], columns], b.f32_constant(0.0))
        for group, left in enumerate(weights):
            right = b.rows(keys, group * self._rows, self._rows)
            product = b.product(
                product, left, right, accumulate=group > 0, a_layout="km", b_layout="kn"
            )
        return product


class SumsOfGroups(_HandedOver):
    """The groups that attend multiply, each for its part of the columns."""

    def __init__(self, problem: Problem):
        super().__init__(problem, stages=1, parts=problem.config.q_tiles)

    def issue(self, keys: Value, group: Value) -> int:
        """As of `QuerySums`."""
        columns = self._shape[1]
        part = b.columns_at(keys, b.INT.mul(group, columns), columns)
        self._taken = self._wait()
        self._in_flight = self._product(self._taken, part, columns)
        return len(self._taken)

    def finish(self, group: Value) -> None:
        """As of `QuerySums`."""
        product = b.wait_product(self._in_flight, newest=1)
        for slot in self._taken:
            b.release(slot, "warps")
        target = self.products.acquire(group)
        b.store(product, target)
        b.commit(target, "warps")


class SumsOfAnother(_HandedOver):
    """Another group multiplies."""

    def __init__(self, problem: Problem):
        super().__init__(problem, stages=AHEAD, parts=1)
        self._problem = problem

    def issue(self, keys: Value, group: Value) -> int:
        """As of `QuerySums`: none."""
        return 0

    def finish(self, group: Value) -> None:
        """As of `QuerySums`: nothing."""

    def multiply(self, ring: b.Ring, tile: WorkTile) -> None:
        """The role of the other group; `ring` has the keys of all groups."""
        keys = ring.wait()

        def of_tile(tile: WorkTile, tiles: ColumnTiles, index: Value) -> None:
            weights, target = self._wait(), self.products.acquire()
            for first in range(0, self._shape[1], PART_COLUMNS):
                count = min(PART_COLUMNS, self._shape[1] - first)
                product = self._product(weights, b.columns(keys, first, count), count)
                b.store(b.wait_product(product), b.columns(target, first, count))
            for slot in weights:
                b.release(slot, "warps")
            b.commit(target, "warps")

        _over_query_tiles(self._problem, tile, of_tile)
        b.release(keys, "warps")


def add_products(
    problem: Problem, handed: SumsOfGroups | SumsOfAnother, sums: Value, tile: WorkTile
) -> None:
    """The role that adds products to memory; rows past the end are dropped. One thread.

    Args:
      sums: memref as of queries, f32.
    """
    width = problem.columns // handed.parts

    def of_tile(tile: WorkTile, tiles: ColumnTiles, index: Value) -> None:
        _, queries = problem.sequences(tile)
        head, row = problem.column_head(tile), len(queries.lead)
        position = queries.row(tiles.first_column(index))
        for part in range(handed.parts):
            slot = handed.products.wait(part)
            coords = [*queries.lead, position, head, part * width]
            b.reduce_out(slot, queries.within(sums, row), coords, [row, row + 2])
            b.release(slot, "copy_engine")

    _over_query_tiles(problem, tile, of_tile)


def _over_query_tiles(
    problem: Problem, tile: WorkTile, body: Callable[[WorkTile, ColumnTiles, Value], None]
) -> None:
    """Emits the loop over the tiles of queries that a work tile visits, head by head.

    Args:
      body: gets the work tile with the head, its tiles and the number of one.
    """

    def of_head(tile: WorkTile) -> list[Value]:
        tiles = problem.column_tiles(tile)

        def iteration(index: Value) -> list[Value]:
            body(tile, tiles, index)
            return []

        return b.loop(0, tiles.count, [], iteration)

    problem.over_column_heads(tile, [], of_head)
