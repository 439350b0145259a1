"""Scores and weights of K and V with scales of positions.

With the scales k_j and v_j of key j, one for each group of columns:

    S_ij = sum over groups of k_j(group) x (products of the group)
    O_i  = sum over j of P_ij v_j(group) V_j          P_ij v_j is an operand of the product

The products P v are rounded to f16. A row of them is multiplied by the power of two that brings the
largest so far into [2^14, 2^15), and so is the row's accumulator of the group.

Each warp prefetches the scales of its key slice, one key per lane, one key tile ahead, and page
numbers two tiles ahead, so that no iteration waits for them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import ColumnTiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.operands.position_scales import PositionScales
from attn_mlir.schedules.operands.sequences import Sequence as StoredSequence
from attn_mlir.schedules.operands.widen import power
from attn_mlir.schedules.softmax.state import SoftmaxStep


class OperandPair(NamedTuple):
    """The scales of K and of V."""

    keys: Any
    values: Any


class PrefetchedScales:
    """Prefetches the scales of a warp's key slice; the loop carries them in its state."""

    def __init__(
        self,
        problem: Problem,
        tile: WorkTile,
        tiles: ColumnTiles,
        first: Value,
        count: int,
        value_groups: Sequence[int],
    ):
        """The scales of `count` keys of each key tile, from its key `first` on.

        Args:
          value_groups: the groups of V's columns that the warp computes.
        """
        assert problem.position_scales is not None
        self._tile, self._tiles, self._first, self._count = tile, tiles, first, count
        self._head = problem.rows.kv_head(tile.head)
        k, v = problem.position_scales
        groups = range(problem.head_dim // k.group)
        self._requested = [(k, group, 0) for group in groups]
        self._sources = [k]
        if (v.lists, v.page_positions) != (k.lists, k.page_positions):
            self._sources.append(v)
        self._requested += [(v, group, len(self._sources) - 1) for group in value_groups]
        self._sequences = {operand: self._stored(operand) for operand in (k, v)}
        self._key_count = len(groups)

    def _stored(self, operand: PositionScales) -> StoredSequence:
        """The stored scales of the work tile's sequence, one position per key."""
        stored = operand.sequences.of(self._tile.batch, self._tile.queries)
        return StoredSequence(stored.lead, stored.start, self._tile.keys.length, False)

    def _column(self, index: Value | int) -> Value:
        return b.INT.add(self._tiles.first_column(index), self._first)

    def _located(self, index: Value | int) -> list[Value]:
        column = self._column(index)
        return [
            entry
            for operand in self._sources
            for entry in operand.read_entries(self._tile.batch, column, self._count)
        ]

    def _loaded(self, index: Value | int, entries: Sequence[Value]) -> list[Value]:
        column = self._column(index)
        return [
            operand.load(
                self._sequences[operand],
                column,
                entries[source : source + 1],
                self._count,
                self._head,
                group,
            )
            for operand, group, source in self._requested
        ]

    def start(self) -> list[Value]:
        """The state for iteration 0; nothing is read without a key tile, as arrays may be empty."""
        f32, count = ir.F32Type.get(), [self._count]
        entries = 0 if self._sources[0].pages is None else len(self._sources)
        loaded = [f32] * len(self._requested) + [b.i32()] * entries
        nothing = [b.f32_constant(0.0)] * len(self._requested) + [b.constant(0)] * entries
        return b.chosen(
            self._tiles.any(),
            [ws.fragment_type(count, kind) for kind in loaded],
            lambda: [*self._loaded(0, self._located(0)), *self._located(1)],
            lambda: [b.fill(count, value) for value in nothing],
        )

    def following(self, index: Value, state: Sequence[Value]) -> list[Value]:
        """The state for the next iteration; its loads start now."""
        entries = state[len(self._requested) :]
        return [*self._loaded(b.INT.add(index, 1), entries), *self._located(b.INT.add(index, 2))]

    def scales(self, state: Sequence[Value]) -> OperandPair:
        """The scales of an iteration, [count] for each group, one key per lane."""
        loaded = state[: len(self._requested)]
        return OperandPair(loaded[: self._key_count], loaded[self._key_count :])


class GroupWeights(NamedTuple):
    """Weights for one group of V's columns, in the form that the product takes.

    Attributes:
      weights: [rows, keys], rounded to the type of the product.
      alpha: [rows], the rescale of the accumulators.
      largest: one fragment [rows], the largest weight so far before its power of two; empty if
        weights are not multiplied by a power of two.
    """

    weights: Value
    alpha: Value
    largest: Sequence[Value] = ()


def with_group(total: Value | None, products: Value, lanes: Value) -> Value:
    """total + products x scales, for one group of K's columns: all [rows, keys].

    `lanes` has the scales [keys], one key per lane; `total` is None for the first group.
    """
    scales = b.broadcast_lanes(lanes)
    if total is None:
        return b.times_columns(products, scales)
    rows = ws.FragmentType(products.type).shape[0]
    return b.map_elements(b.fma, products, b.broadcast_down(scales, rows), total)


def scaled_weights(step: SoftmaxStep, lanes: Value, largest: Value, element: Any) -> GroupWeights:
    """Weights P multiplied by the scales of their keys, and by a power of two for each row.

    Args:
      step: a step of online softmax: P in f32, and alpha.
      lanes: scales [keys], one key per lane.
      largest: [rows], the largest weight up to the previous iteration.
      element: the type of the product's operands.
    """
    products = b.times_columns(step.weights, b.broadcast_lanes(lanes))
    before = b.map_elements(b.fmul, largest, step.alpha)
    after = b.reduce_rows("max", products, before)
    up = b.map_elements(lambda x: power(x)[0], after)

    def rescale(old: Value, by: Value, new: Value) -> Value:
        return b.fmul(b.fmul(by, power(new)[0]), power(old)[1])

    alpha = b.map_elements(rescale, largest, step.alpha, after)
    return GroupWeights(b.rounded(b.times_rows(products, up), element), alpha, [after])


def unscaled_accumulators(accumulators: Value, largest: Value) -> Value:
    """The accumulators [rows, columns] divided by the powers of two of their weights."""
    return b.times_rows(accumulators, b.map_elements(lambda x: power(x)[1], largest))
