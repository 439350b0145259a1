"""Layouts of V and P for products with P in registers.

Products of 16 bits read a tile of values as it has been loaded. Those of 8 bits take both operands
with K, here the keys, along their rows (PTX ISA, wgmma: no transposed operands of 8 bits). So
threads transpose each tile on the way, from the ring that is loaded into another one:

```text
load --v--> transpose --turned--> attend
```

With its keys interleaved, P is an operand A as it is, and so is a word of the transpose what a
thread has got by `ldmatrix`; see `ws.interleave`.
"""

from collections.abc import Sequence

from attn_mlir.dialect import ws
from attn_mlir.dialect.targets.limits import WARP_THREADS
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.config import FP8_BITS
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.policy.register_tiling import product_columns
from attn_mlir.schedules.policy.tiling import MOST_GROUPS

TRANSPOSING_WARPS = 2  # beside the warp that loads and the one that stores, they fill a warpgroup
WORD_ELEMENTS = 4  # of 8 bits
COLUMN_STEP = 16  # columns transposed at a time are a multiple: of `ldmatrix`, 16 bytes


class LoadedValues:
    """Values as they have been loaded, whose products add to O.

    Attributes:
      loaded: the ring that `load` fills, of tiles [tile_n, v_columns].
      column_ranges: the columns of each accumulator of O; two may overlap.
      go_first: whether the first product is issued before that of the next scores.
    """

    def __init__(self, problem: Problem):
        config, shape = problem.config, [problem.config.tile_n, problem.v_columns]
        self._element = problem.element
        tile = b.tile(shape, self._element, "shared")
        self.loaded = b.Ring("v", tile, stages=config.kv_stages)
        self.column_ranges = [range(problem.v_columns)]
        self.go_first = False

    def operand(self, weights: Value) -> Value:
        """P, f32, as an operand of the products: rounded."""
        return b.rounded(weights, self._element)

    def wait(self) -> Value:
        """The next slot of values, once it is full."""
        return self.loaded.wait()

    def start(self, accumulators: Sequence[Value], p: Value, slot: Value) -> Value:
        """Issues the first product P V; in flight."""
        return b.product(accumulators[0], p, slot, accumulate=True, b_layout="kn")

    def add(
        self,
        number: int,
        in_flight: Value,
        accumulators: Sequence[Value],
        p: Value,
        slot: Value,
        newest: int = 0,
    ) -> tuple[Value | None, list[Value]]:
        """Waits for a product and adds it to O; issues the next one or releases the slot.

        Args:
          number: number of the product.
          newest: later products that may still be in flight.

        Returns:
          The next product, in flight, or None; O so far.
        """
        result = b.wait_product(in_flight, newest=newest)
        b.release(slot, "warps")
        return None, [result]


class TransposedValues(LoadedValues):
    """Values of 8 bits, [v_columns, tile_n] with the keys interleaved, which threads have made of
    them.

    The tensor core aligns the addends of a product of 8 bits to the largest of them and keeps 13
    bits behind its binary point, of what is in the accumulator as well. Adding up many key tiles
    there loses a part of O that grows with their number (2 % at 2048 keys of values about 1). So
    each key tile has sums of its own, which are added to O in f32, some columns at a time where
    registers ask for it.

    A group's exponentials come behind its second product with P, which waits for the first. Issued
    behind the scores, the first would wait for the scores of the other group as well, if that
    issues them in between, and both would begin their exponentials at the same time. So of two
    groups each issues the first product before its scores. Three groups, and groups with one
    product for all columns, would gain nothing
    (schedules/attention/warpgroups/README.md#what-bounds-8-bits).
    """

    def __init__(self, problem: Problem):
        super().__init__(problem)
        config = problem.config
        self._scale = problem.scale
        self._rows, self._keys, self._columns = config.tile_m, config.tile_n, problem.v_columns
        tile = b.tile([self._columns, self._keys], self._element, "shared")
        self._transposed = b.Ring("turned", tile, stages=config.kv_stages)
        self.column_ranges = product_columns(self._columns, config.q_tiles)
        self.go_first = len(self.column_ranges) > 1 and config.q_tiles < MOST_GROUPS

    def operand(self, weights: Value) -> Value:
        """As of `LoadedValues`, with the keys in the order of the transpose."""
        return b.interleaved(super().operand(weights))

    def wait(self) -> Value:
        """As of `LoadedValues`: a slot with a transpose."""
        return self._transposed.wait()

    def start(self, accumulators: Sequence[Value], p: Value, slot: Value) -> Value:
        """As of `LoadedValues`, for the first columns."""
        return self._product(0, p, slot)

    def add(
        self,
        number: int,
        in_flight: Value,
        accumulators: Sequence[Value],
        p: Value,
        slot: Value,
        newest: int = 0,
    ) -> tuple[Value | None, list[Value]]:
        """As of `LoadedValues`."""
        done = b.wait_product(in_flight, newest=newest)
        result = [*accumulators]
        result[number] = b.map_elements(b.fadd, accumulators[number], done)
        is_last = number + 1 == len(accumulators)
        if newest or not is_last:
            result[number] = b.opaque(result[number])
        if is_last:
            b.release(slot, "warps")
            return None, result
        return self._product(number + 1, p, slot, done), result

    def _product(self, number: int, p: Value, slot: Value, reused: Value | None = None) -> Value:
        """The product of P and some columns of V, in flight.

        Args:
          reused: dead accumulators. The product reuses their registers if it seems to add to them:
            it would, were the scale, which is above 0, negative.
        """
        span = self.column_ranges[number]
        columns, count = b.rows(slot, span.start, len(span)), len(span)
        if reused is None:
            reused = b.fill([self._rows, count], b.f32_constant(0.0))
            return b.product(reused, p, columns, accumulate=False, b_layout="nk")
        never = b.fcompare("OLT", self._scale, b.f32_constant(0.0))
        return b.product(reused, p, columns, accumulate=never, b_layout="nk")

    def transpose(self, problem: Problem, tile: WorkTile, registers: int) -> None:
        """Transposes the values of each key tile of a work tile.

        A thread loads a quarter of its registers before it stores them; with more, ptxas spilled.
        """
        key_tiles = problem.column_tiles(tile)

        def iteration(index: Value) -> list[Value]:
            loaded = self.loaded.wait()
            transposed = self._transposed.acquire()
            for first in range(0, self._columns, step):
                count = min(step, self._columns - first)
                columns_of_keys = b.interleaved(b.load(b.columns(loaded, first, count)), "rows")
                b.store(b.transposed(columns_of_keys), b.rows(transposed, first, count))
            b.release(loaded, "warps")
            b.commit(transposed, "warps")
            return []

        words = (registers // 4 + 2) * TRANSPOSING_WARPS * WARP_THREADS
        step = max(words * WORD_ELEMENTS // self._keys // COLUMN_STEP, 1) * COLUMN_STEP
        b.loop(0, key_tiles.count, [], iteration)


def values_of(problem: Problem) -> LoadedValues:
    """The values of a problem."""
    is_fp8 = ws.element_bits(problem.element) == FP8_BITS
    return (TransposedValues if is_fp8 else LoadedValues)(problem)
