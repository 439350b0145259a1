"""From `attn.kv_gradients` to kernels for large heads, whose two gradients two groups divide.

A work tile is 64 keys of a head. The gradients of 64 rows are more than a group has registers for,
so one group has those of values and one those of keys. The first computes the weights that both
need and leaves them in shared memory, in f32; so each score is computed once, and there are four
products, two by each group.

```text
values                                           keys
issue S^T = K Q^T                                issue dP^T = V dO^T
await S, P = 2^(c S - LSE), 0 where hidden
P slope --factors-->                             await dP and factors, dS = factors (dP - delta)
dV += P dO                                       dK += dS Q
```
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.backward.gradients import Gradients
from attn_mlir.schedules.backward.kernel import GradientConfig, GradientsSchedule, roles_behind
from attn_mlir.schedules.backward.modified import times_slope
from attn_mlir.schedules.backward.numbers import DELTA, LSE, WEIGHT
from attn_mlir.schedules.backward.policy import DIVIDED_KV_GRADIENTS, GradientsPolicy
from attn_mlir.schedules.backward.roles import GradientStorage, hand_over
from attn_mlir.schedules.backward.steps import (
    added_product,
    exponentials,
    product_of,
    scale_of_exponents,
    times,
)
from attn_mlir.schedules.core.column_tiles import ColumnTiles, Test, loop_over_tiles
from attn_mlir.schedules.core.problem import Value, WorkTile
from attn_mlir.schedules.kernel import over_tiles
from attn_mlir.schedules.registry import register
from attn_mlir.schedules.softmax.state import masked_scores


@dataclass(frozen=True)
class DividedConfig(GradientConfig):
    """As of gradients of keys and values, with one tile of rows for both groups."""

    q_tiles: int = 1


class DividedStorage(GradientStorage):
    """The rings of the kernel.

    Attributes:
      factors: of tiles [keys, queries], f32: P times the derivative of the modifier.
    """

    def __init__(self, gradients: Gradients):
        super().__init__(gradients)
        config = gradients.problem.config
        shape = [config.tile_m, config.tile_n]
        self.factors = b.Ring("factors", b.tile(shape, ir.F32Type.get(), "shared"))


@register
class DividedKvGradients(GradientsSchedule):
    """Gradients of keys and values, which stand still, by a group each."""

    policy: ClassVar[GradientsPolicy] = DIVIDED_KV_GRADIENTS
    config: ClassVar[type[GradientConfig]] = DividedConfig

    def roles(self, gradients: Gradients, config: Any, target: Target) -> list[b.Role]:
        """As of every schedule of gradients."""
        storage = DividedStorage(gradients)

        def group(label: str, kind: type[_Group]) -> b.Role:
            def run(tile: WorkTile, _: Value) -> None:
                kind(gradients, storage, tile).compute()

            body, registers = over_tiles(gradients.problem, run), config.attend_registers
            return b.Role(label, body, warps=WARPGROUP_WARPS, registers=registers)

        groups = [group("values", _OfValues), group("keys", _OfKeys)]
        return groups + roles_behind(gradients, config, storage)


class _Group(ABC):
    """A group's work tile; its state is one gradient.

    Attributes:
      read: which operands, of those that stand still and that stream, its first product is of; the
        gradient is that of the others.
    """

    read: ClassVar[int]

    def __init__(self, gradients: Gradients, storage: DividedStorage, tile: WorkTile):
        self._problem, self._storage, self._tile = gradients.problem, storage, tile
        self._row0 = self._problem.first_position(tile, 0)
        self._take = storage.numbers.of_tile(tile, self._row0)
        self._summed = 1 - self.read

    def compute(self) -> None:
        """The gradient, to its ring of results."""
        problem, storage = self._problem, self._storage
        rows, ring = storage.stationary[self.read], storage.results[self._summed]
        self._rows = rows.wait(0)
        shape = [problem.config.tile_m, storage.widths[self._summed]]
        empty = b.fill(shape, b.f32_constant(0.0))
        (gradient,) = problem.over_column_heads(self._tile, [empty], self._of_head)
        rows.release()
        hand_over([ring], [self.scaled(gradient)])

    def _of_head(self, tile: WorkTile, gradient: Value) -> list[Value]:
        """All iterations over one head of the streamed side."""
        tiles = self._problem.column_tiles(tile)

        def iteration(test: Test | None, index: Value, gradient: Value) -> list[Value]:
            return [self._step(tile, tiles, test, index, gradient)]

        return loop_over_tiles(tiles, tiles.phases(b.constant(0)), [gradient], iteration)

    def _step(
        self, tile: WorkTile, tiles: ColumnTiles, test: Test | None, index: Value, gradient: Value
    ) -> Value:
        """The gradient after a streamed tile."""
        read, summed = (self._storage.streamed[x] for x in (self.read, self._summed))
        columns = read.wait()
        found = b.wait_product(product_of(self._problem, self._rows, columns))
        b.release(columns, "warps")
        weights = b.rounded(self.weights(tile, tiles, test, index, found), self._problem.element)
        columns = summed.wait()
        gradient = b.wait_product(added_product(gradient, weights, columns))
        b.release(columns, "warps")
        return gradient

    def _row_weights(self) -> Value | None:
        return self._take(WEIGHT) if self._storage.has_weights else None

    @abstractmethod
    def weights(
        self, tile: WorkTile, tiles: ColumnTiles, test: Test | None, index: Value, found: Value
    ) -> Value:
        """The factors of the streamed rows, from the first product [rows, columns]."""

    @abstractmethod
    def scaled(self, gradient: Value) -> Value:
        """The gradient of all streamed tiles, as it is written."""


class _OfValues(_Group):
    """Weights of scores, and the gradient of values."""

    read: ClassVar[int] = 0

    def weights(
        self, tile: WorkTile, tiles: ColumnTiles, test: Test | None, index: Value, found: Value
    ) -> Value:
        """P; hands over its factors in the gradients of scores."""
        problem, row0 = self._problem, self._row0
        scores = masked_scores(problem, tile, found, test, tiles, index, row0, problem.scale)
        weights = exponentials(scores, scale_of_exponents(problem), self._take(LSE))
        factors = times_slope(problem, tile, found, weights, tiles, index, row0)
        slot = self._storage.factors.acquire()
        b.store(factors, slot)
        b.commit(slot, "warps")
        return times(weights, self._row_weights())

    def scaled(self, gradient: Value) -> Value:
        """As it is."""
        return gradient


class _OfKeys(_Group):
    """The gradient of keys."""

    read: ClassVar[int] = 1

    def weights(
        self, tile: WorkTile, tiles: ColumnTiles, test: Test | None, index: Value, found: Value
    ) -> Value:
        """The gradients of scores."""
        gradients = times(found, self._row_weights())
        differences = b.map_elements(b.fsub, gradients, self._take(DELTA))
        slot = self._storage.factors.wait()
        factors = b.load(slot)
        b.release(slot, "warps")
        return times(factors, differences)

    def scaled(self, gradient: Value) -> Value:
        """With the scale of scores."""
        return b.map_elements(lambda x: b.fmul(x, self._problem.scale), gradient)
