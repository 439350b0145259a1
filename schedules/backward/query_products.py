"""The gradients of queries beside those of keys and values: products with dS, added to memory.

The groups that attend write dS of their keys to rings, [keys, queries] each. What multiplies them
with the keys is a group of its own, or these groups again, each for some columns of the keys; one
thread then adds the products to memory by the copy engine.
"""

from typing import Protocol

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.stationary import SlotOfAll
from attn_mlir.schedules.backward.turns import Accumulators
from attn_mlir.schedules.core.column_tiles import ColumnTiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.kernel import over_tiles

PART_COLUMNS = 64  # of dQ that a group multiplies at once: 32 registers of a thread
AHEAD = 2  # tiles of dS: a group of its own may multiply one while the next is computed


class QueryProducts(Protocol):
    """The maker of the gradients of queries; the groups that attend call all but `roles`, once for
    each tile.
    """

    def roles(
        self, accumulators: Accumulators, *, multiply_registers: int, add_registers: int
    ) -> list[b.Role]:
        """The further roles.

        Args:
          accumulators: the memory that products are added to.
          multiply_registers, add_registers: of a thread of a group that multiplies, if there is
            one, and of the warp that adds.
        """
        ...

    def hand_over(self, score_gradients: Value, group: Value) -> None:
        """Writes dS of the group, [keys, queries] as products read it."""
        ...

    def issue(self, group: Value) -> int:
        """Issues products with the keys of all groups, if this is for them to do; their number."""
        ...

    def finish(self, group: Value) -> None:
        """Waits for these products, behind which another was issued, and hands them over."""
        ...

    def await_readers(self, group: Value) -> None:
        """Waits until all groups have read the keys, if gradients overwrite them."""
        ...


class _Rings:
    """dS in slots of its own for each group, and products in a ring.

    Attributes:
      products: the ring of products, [queries, columns] f32; `parts` instances for all columns.
    """

    def __init__(
        self, problem: Problem, keys: SlotOfAll, *, stages: int, parts: int, product_stages: int = 1
    ):
        config = problem.config
        self._problem, self._keys, self._parts = problem, keys, parts
        self._groups, self._rows = config.q_tiles, config.tile_m
        weights = b.tile([config.tile_m, config.tile_n], problem.element, "shared")
        self._weights = b.Ring("ds", weights, stages=stages, instances=self._groups)
        self._shape = config.tile_n, problem.columns // parts
        product = b.tile([*self._shape], ir.F32Type.get(), "shared")
        self._products = b.Ring("dq", product, stages=product_stages, instances=parts)

    def hand_over(self, score_gradients: Value, group: Value) -> None:
        """As of `QueryProducts`."""
        slot = self._weights.acquire(group)
        b.store(score_gradients, slot)
        b.commit(slot, "warps")

    def roles(
        self, accumulators: Accumulators, *, multiply_registers: int, add_registers: int
    ) -> list[b.Role]:
        """As of `QueryProducts`."""

        def add(tile: WorkTile, _: Value) -> None:
            self._add(accumulators, tile)

        body = over_tiles(self._problem, add)
        return [b.Role("add", body, lanes=1, registers=add_registers)]

    def _add(self, accumulators: Accumulators, tile: WorkTile) -> None:
        """Adds products to memory. One thread."""
        parts = range(self._parts)
        columns = self._shape[1]

        def add(tile: WorkTile, first_row: Value) -> None:
            for part in parts:
                slot = self._products.wait(part)
                accumulators.add(tile, first_row, slot, part * columns)
                b.release(slot, "copy_engine")

        accumulators.in_turn(tile, add)

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


class ByAttendGroups(_Rings):
    """The groups that compute scores also multiply for dQ, each for its part of the columns.

    Args:
      product_stages: stages of the ring of products. Shared memory has room for two stages if the
        gradient of keys overwrites the keys.
    """

    def __init__(self, problem: Problem, keys: SlotOfAll, *, product_stages: int):
        parts = problem.config.q_tiles
        super().__init__(problem, keys, stages=1, parts=parts, product_stages=product_stages)
        self._read: b.Ring | None = None
        if product_stages > 1:
            self._read = b.Ring("read", None, instances=self._groups)

    def await_readers(self, group: Value) -> None:
        """As of `QueryProducts`."""
        if self._read is None:
            return
        b.commit(self._read.acquire(group), "warps")
        for other in range(self._groups):
            b.release(self._read.wait(other), "warps")

    def issue(self, group: Value) -> int:
        """As of `QueryProducts`."""
        columns = self._shape[1]
        part = b.columns_at(self._keys.taken, b.INT.mul(group, columns), columns)
        self._taken = self._wait()
        self._in_flight = self._product(self._taken, part, columns)
        return len(self._taken)

    def finish(self, group: Value) -> None:
        """As of `QueryProducts`."""
        product = b.wait_product(self._in_flight, newest=1)
        for slot in self._taken:
            b.release(slot, "warps")
        target = self._products.acquire(group)
        b.store(product, target)
        b.commit(target, "warps")


class ByAnotherGroup(_Rings):
    """Another group multiplies."""

    def __init__(self, problem: Problem, keys: SlotOfAll):
        super().__init__(problem, keys, stages=AHEAD, parts=1)

    def issue(self, group: Value) -> int:
        """As of `QueryProducts`: none."""
        return 0

    def finish(self, group: Value) -> None:
        """As of `QueryProducts`: nothing."""

    def await_readers(self, group: Value) -> None:
        """As of `QueryProducts`: nothing, since gradients do not overwrite the keys."""

    def roles(
        self, accumulators: Accumulators, *, multiply_registers: int, add_registers: int
    ) -> list[b.Role]:
        """As of `QueryProducts`."""
        multiply = b.Role(
            "multiply",
            over_tiles(self._problem, lambda tile, _: self._multiply(tile)),
            warps=WARPGROUP_WARPS,
            registers=multiply_registers,
        )
        budgets = {"multiply_registers": multiply_registers, "add_registers": add_registers}
        return [multiply, *super().roles(accumulators, **budgets)]

    def _multiply(self, tile: WorkTile) -> None:
        keys = self._keys.ring.wait()

        def of_tile(tile: WorkTile, tiles: ColumnTiles, index: Value) -> None:
            weights, target = self._wait(), self._products.acquire()
            for first in range(0, self._shape[1], PART_COLUMNS):
                count = min(PART_COLUMNS, self._shape[1] - first)
                product = self._product(weights, b.columns(keys, first, count), count)
                b.store(b.wait_product(product), b.columns(target, first, count))
            for slot in weights:
                b.release(slot, "warps")
            b.commit(target, "warps")

        self._problem.each_column_tile(tile, of_tile)
        b.release(keys, "warps")
