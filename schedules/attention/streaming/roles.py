"""The roles of a kernel that streams keys and values past few queries, which stay in registers.

Each warp of `attend` owns a strip of every key tile, for both products, and a maximum, a sum and an
O of its own: warps meet once per work tile, in `merge`, and never on the way. Where O is too wide
for the registers of a warp, some share a strip: all find its weights, and each has a slice of O's
columns. Where there are two query tiles, two share it as well, and each has one of these.
See `kernels.streaming` for who hands what to whom.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import LINE_BYTES, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.column_tiles import Test, loop_over_tiles
from attn_mlir.schedules.core.problem import Problem, Value, WorkTile
from attn_mlir.schedules.operands.widen import UpcastQueries, upcasts
from attn_mlir.schedules.policy.tiling import SLICE_KEYS, Slices, query_slot_rows
from attn_mlir.schedules.softmax.row import Row
from attn_mlir.schedules.softmax.state import (
    STATE_VALUES,
    RowState,
    masked_scores,
    reciprocal,
    softmax_step,
    store_lse,
    with_sink,
)
from attn_mlir.schedules.sources.kv_source import as_filled

from .position_scales import Ahead, GroupWeights, Sides, real_sums, weighed_values, with_group

SUM_COLUMNS = 32  # of O at a time: what is loaded of V beside it takes 16 registers
DEPTH_COLUMNS = 64  # of Q and K at a time: what is loaded of K takes 32 registers
MAX_REGISTER_COLUMNS = (
    304  # columns of Q and O together whose registers a thread has; beyond, Q is read again
)
MAX_REGISTER_COLUMNS_OF_GROUPS = 224  # where a row of K or V has several factors
MAX_REGISTER_COLUMNS_OF_TILES = 240  # with two query tiles, where f32 lie in pairs


class Share(NamedTuple):
    """What a warp of `attend` works on.

    Attributes:
      way: the query tile.
      slice: of O's columns; computed where one role has all slices.
      strip: of each key tile.
      warp: its number among those that attend.
    """

    way: int
    slice: Value | int
    strip: Value
    warp: Value


class StreamingStorage:
    """The rings of the kernel.

    Attributes:
      strips: of a key tile.
      q_tiles: of a work tile.
      slices: of O's columns.
      groups: of `strips` warps each, one for each slice of each query tile, whose slices follow one
        another; warp `group` x `strips` + `strip` has the way of that number.
      roles: that attend, of equally many of these groups: one where all slices have the same code,
        since each begins with a line of V and has no factors of its own.
      slice_columns: of O.
      columns: of all slices, at least those that O has; what is beyond is 0.
      handed: columns that a warp hands over at a time.
      has_pairs: whether f32 lie in pairs, in neighbouring registers.
    """

    def __init__(self, problem: Problem, target: Target, box_rows: int):
        """For a problem whose keys and values come in boxes of so many rows.

        Boxes of several lines lie side by side, so that a copy fills each; as rows of one tile they
        would be a copy for each 128-byte column.
        """
        config, element, stored = problem.config, problem.element, problem.stored
        self.strips = config.tile_n // SLICE_KEYS
        slices = Slices.of(problem.v_columns)
        self.slices, self.slice_columns = slices
        self.handed = slices.handed
        self.q_tiles, self.groups = config.q_tiles, config.q_tiles * self.slices
        self.has_pairs = Feature.PACKED_F32 in target.features
        columns = self.slices * self.slice_columns
        loaded = query_slot_rows(config.packed_heads)
        queries = b.tile([loaded, problem.columns], element, "shared")
        self.q = b.Ring("q", queries, stages=2, instances=self.q_tiles)
        self.columns = columns
        widest = max(problem.columns, columns)
        line = LINE_BYTES * 8 // ws.element_bits(stored)
        has_one_code = problem.position_scales is None and self.slice_columns % line == 0
        self.roles = self.q_tiles if has_one_code else self.groups
        is_cut = widest > line and problem.columns % line == columns % line == 0
        rows = box_rows if is_cut else config.tile_n
        keys = b.tile([rows, config.tile_n // rows * widest], stored, "shared")
        self.k = self.v = b.Ring("kv", keys, stages=config.kv_stages)
        self._declare_found(problem)

    def _declare_found(self, problem: Problem) -> None:
        """The rings of what warps have found: a way for each; and that of O."""
        rows, f32, warps = problem.config.tile_m, ir.F32Type.get(), self.groups * self.strips
        self.maxima = b.Ring("maxima", b.tile([rows], f32, "shared"), instances=warps)
        self.l_partial = b.Ring("totals", b.tile([rows], f32, "shared"), instances=warps)
        self.sums = b.Ring("sums", b.tile([rows, self.handed], f32, "shared"), instances=warps)
        out = b.tile([rows, self.columns], problem.output, "shared")
        self.out = b.Ring("out", out, instances=self.q_tiles)

    @property
    def max_register_columns(self) -> int:
        """Columns of Q and O together whose registers a thread has."""
        return (
            MAX_REGISTER_COLUMNS_OF_TILES
            if self.has_pairs and self.q_tiles > 1
            else MAX_REGISTER_COLUMNS
        )

    @property
    def sum_parts(self) -> list[tuple[int, int]]:
        """First column and number of the parts that a warp has its slice of O in."""
        return parts_of(self.slice_columns, SUM_COLUMNS)

    def share(self, role: int, number: Value) -> Share:
        """What a warp of a role works on, by its number there."""
        inside = self.groups // self.roles
        first = role * inside
        way, slice_ = divmod(first, self.slices)
        warp = b.INT.add(number, first * self.strips) if first else number
        if inside == 1:
            return Share(way, slice_, number, warp)
        own = b.INT.floordiv(number, self.strips)
        strip = b.INT.sub(number, b.INT.mul(own, self.strips))
        return Share(way, own, strip, warp)

    def values(self, strip: Value, slice_: Value | int) -> Value:
        """The columns of a slice in a strip of values."""
        if isinstance(slice_, int):
            return b.columns(strip, slice_ * self.slice_columns, self.slice_columns)
        first = b.INT.mul(slice_, self.slice_columns)
        return b.columns_at(strip, first, self.slice_columns)

    def hand_over(self, share: Share, maximum: Value, total: Value, *sums: Value) -> None:
        """Gives what a warp has found for a work tile to those that put it together.

        Args:
          sums: its slice of O, in `sum_parts`.
        """
        warp = share.warp
        for ring, value in ((self.maxima, maximum), (self.l_partial, total)):
            hand_over(ring, warp, value)
        some = len(sums) * self.handed // self.slice_columns
        for first in range(0, len(sums), some):
            slot = self.sums.acquire(warp)
            for x, part in zip(sums[first : first + some], self.sum_parts, strict=False):
                b.store(x, b.columns(slot, *part))
            b.commit(slot, "threads")


def hand_over(ring: b.Ring, way: Value, value: Value) -> None:
    """Fills a slot with a fragment."""
    slot = ring.acquire(way)
    b.store(value, slot)
    b.commit(slot, "threads")


class Groups(NamedTuple):
    """Columns of K and V by the factors that they share; all of them together where none have any.

    Attributes:
      depth: columns of K at a time, of one group.
      key: columns of a group of K; `keys` of them.
      values: the groups of V that a warp's slice of O is made of, by their numbers; none where V
        has no factors of positions.
      members: for each of these, or for all of V, which parts of that slice belong to it.
    """

    depth: int
    key: int
    keys: int
    values: Sequence[int]
    members: Sequence[Sequence[int]]

    @property
    def has_several(self) -> bool:
        """Whether a row of K or V, or of its part for a warp, has several factors."""
        return max(self.keys, len(self.values)) > 1

    @classmethod
    def of(cls, problem: Problem, storage: StreamingStorage, slice_: Value | int) -> "Groups":
        """Those of a problem, and of a slice of its O, whose number is known where there are
        factors.
        """
        firsts = [first for first, _ in storage.sum_parts]
        depth = DEPTH_COLUMNS if storage.slices == 1 else SUM_COLUMNS
        if problem.position_scales is None:
            return cls(depth, problem.columns, 1, (), [range(len(firsts))])
        k, v = problem.position_scales
        keys = problem.head_dim // k.group
        depth = depth if keys == 1 else math.gcd(k.group, depth)
        last = problem.v_head_dim // v.group - 1
        own = [min((slice_ * storage.slice_columns + x) // v.group, last) for x in firsts]
        values = range(own[0], own[-1] + 1)
        members = [[n for n, group in enumerate(own) if group == value] for value in values]
        return cls(depth, problem.columns if keys == 1 else k.group, keys, values, members)


class Queries:
    """The rows of a work tile as operands of a warp's products, in registers or read each time."""

    def __init__(
        self, problem: Problem, tile: Value, parts: Sequence[tuple[int, int]], *, is_held: bool
    ):
        """Of these parts of a tile's columns, first and number of each."""
        self._tile, self._parts = tile, parts
        is_read = is_held or problem.widens
        loaded = [b.load(b.columns(tile, *part)) for part in parts] if is_read else []
        self._wide = UpcastQueries(loaded) if problem.widens else None
        self._held = [self._operand(part) for part in loaded] if is_held else []

    def _operand(self, part: Value) -> Value:
        return part if self._wide is None else self._wide.operand(part)

    def part(self, number: int) -> Value:
        """Some columns, all of them as `scores` wants them."""
        if self._held:
            return self._held[number]
        return self._operand(b.load(b.columns(self._tile, *self._parts[number])))

    def scores(self, products: Value) -> Value:
        """The products of all columns, as those of the queries themselves."""
        undo = None if self._wide is None else self._wide.undo
        return products if undo is None else b.times_rows(products, undo)


def attend(
    problem: Problem, storage: StreamingStorage, tile: WorkTile, role: int, number: Value
) -> None:
    """Online softmax of a query tile over a strip of each key tile, by warp `number` of a role."""
    config, widens, shared = problem.config, problem.widens, problem.shares_rows
    rows = config.tile_m
    share = storage.share(role, number)
    way = share.way
    visited = problem.column_tiles(tile)
    tile = problem.query_tile(tile, way)
    scale = problem.score_scale(tile)
    row = Row.of(problem, scale)
    row0 = problem.first_position(tile, way)
    first = b.INT.mul(share.strip, SLICE_KEYS)
    zero = b.f32_constant(0.0)
    sum_parts = storage.sum_parts

    q_slot = storage.q.wait(way)
    groups = Groups.of(problem, storage, share.slice)
    max_register_columns = (
        MAX_REGISTER_COLUMNS_OF_GROUPS if groups.has_several else storage.max_register_columns
    )
    is_held = problem.columns + storage.slice_columns <= max_register_columns
    depths = parts_of(problem.columns, groups.depth)
    queries = Queries(problem, b.rows(q_slot, 0, rows), depths, is_held=is_held)
    if is_held:
        b.release(q_slot, "threads")

    def operand(tile: Value) -> Value:
        """Some of K or V, as products take it."""
        return upcasts(b.load(tile)) if widens else b.load(tile)

    def products(slot: Value, factors: Sequence[Value]) -> Value:
        """The scores of a strip of keys, unscaled but for the factors of keys."""
        total: Value | None = None
        scores = b.fill([rows, SLICE_KEYS], zero)
        for number, part in enumerate(depths):
            pair = queries.part(number), operand(b.columns(slot, *part))
            scores = b.dot(scores, *pair, b_layout="nk", upcasts=widens)
            group, rest = divmod(sum(part), groups.key)
            if factors and rest == 0:
                total = with_group(total, scores, factors[group - 1])
                scores = b.fill([rows, SLICE_KEYS], zero)
        return queries.scores(scores if total is None else total)

    def strip(slot: Value, columns: int) -> Value:
        boxes = as_filled(slot, config.tile_n, columns, problem.stored)
        return b.rows(b.view(boxes, [config.tile_n, columns], problem.stored), first, SLICE_KEYS)

    def iteration(test: Test | None, turn: Value, *state: Value) -> list[Value]:
        known, state = RowState(*state[:STATE_VALUES]), state[STATE_VALUES:]
        ends = len(sum_parts), len(sum_parts) + len(groups.values)
        sums, largest, handed = state[: ends[0]], [*state[slice(*ends)]], state[ends[1] :]
        own = Sides((), ()) if ahead is None else ahead.factors(handed)
        slot = storage.k.wait()
        scores = products(strip(slot, problem.columns), own.keys)
        if not shared:
            b.release(slot, "threads")
        scores = masked_scores(problem, tile, scores, test, visited, turn, row0, scale, first)
        step = softmax_step(problem, row, scores, known)
        following = [] if ahead is None else ahead.following(turn, handed)
        plain = None
        if ahead is None:
            plain = GroupWeights(b.rounded(step.weights, problem.product), step.alpha)
        if not shared:
            slot = storage.v.wait()
        values = strip(slot, problem.columns if shared else storage.columns)
        values = storage.values(values, share.slice)
        added: list[Value] = []
        for number, members in enumerate(groups.members):
            by = plain or weighed_values(step, own.values[number], largest[number], problem.product)
            for member in members:
                x = b.times_rows(sums[member], by.alpha)
                part = operand(b.columns(values, *sum_parts[member]))
                added.append(b.dot(x, by.weights, part, b_layout="kn", upcasts=widens))
            largest[number : number + 1] = by.largest
        b.release(slot, "threads")
        return [*step.rows, *added, *largest, *following]

    state = [*RowState.empty(row, rows)]
    state += [b.fill([rows, count], zero) for _, count in sum_parts]
    ahead = None
    if problem.position_scales is not None:
        ahead = Ahead(problem, tile, visited, first, SLICE_KEYS, groups.values)
        state += [b.fill([rows], zero) for _ in groups.values]
        state += ahead.start()
    if shared:  # long products: tests cost less than a second loop, whose code is as long
        state = b.loop(0, visited.count, state, lambda *args: iteration(Test.ALL, *args))
    else:
        state = loop_over_tiles(visited, visited.phases(way), state, iteration)
    known, state = RowState(*state[:STATE_VALUES]), state[STATE_VALUES:]
    sums, largest = state[: len(sum_parts)], state[len(sum_parts) :]
    if ahead is not None:
        own = [x for x, members in zip(largest, groups.members, strict=False) for _ in members]
        sums = [real_sums(*pair) for pair in zip(sums, own, strict=True)]
    if not is_held:
        b.release(q_slot, "threads")
    storage.hand_over(share, known.maximum, known.total(), *sums)


def merge(problem: Problem, storage: StreamingStorage, tile: WorkTile) -> None:
    """Adds up what the warps have found, each by its maximum; writes O / l and the LSE.

    With the maximum m of all, l = sum of l(w) 2^((m(w) - m) c), and O so as well.
    """
    row = Row.of(problem, problem.score_scale(tile))
    for way in range(storage.q_tiles):
        _merge(problem, storage, problem.query_tile(tile, way), row, way)


def _merge(problem: Problem, storage: StreamingStorage, tile: WorkTile, row: Row, way: int) -> None:
    """The same for one query tile."""
    row0 = problem.first_position(tile, way)
    in_tile = storage.slices * storage.strips
    warps = range(way * in_tile, (way + 1) * in_tile)
    slots = [[ring.wait(warp) for warp in warps] for ring in (storage.maxima, storage.l_partial)]
    maxima, l_partial = ([b.load(slot) for slot in some[: storage.strips]] for some in slots)
    maximum, factors = common(row, maxima)
    total = weighed(l_partial, factors)
    divisor = with_sink(problem, row, tile, row0, maximum, total)
    output = problem.output_scale(tile)
    inverse = b.map_elements(lambda t: reciprocal(t, output), divisor)
    store_lse(problem, row, tile, row0, maximum, total)
    out = storage.out.acquire(way)
    for slice_ in range(storage.slices):
        own = warps[slice_ * storage.strips :][: storage.strips]
        for begin in range(0, storage.slice_columns, storage.handed):
            found = [storage.sums.wait(warp) for warp in own]
            for first, count in parts_of(storage.handed, SUM_COLUMNS):
                sums = [b.load(b.columns(slot, first, count)) for slot in found]
                summed = weighed_rows(sums, factors)
                column = slice_ * storage.slice_columns + begin + first
                value = b.rounded(b.times_rows(summed, inverse), problem.output)
                b.store(value, b.columns(out, column, count))
            for slot in found:
                b.release(slot, "threads")
    for some in slots:
        for slot in some:
            b.release(slot, "threads")
    b.commit(out, "threads")


def parts_of(count: int, most: int) -> list[tuple[int, int]]:
    """First column and number of each of the parts that columns are worked on in."""
    return [(first, min(most, count - first)) for first in range(0, count, most)]


def common(row: Row, maxima: list[Value]) -> tuple[Value, list[Value]]:
    """The maximum of all, and the factor of what was found by each."""
    maximum = maxima[0]
    for other in maxima[1:]:
        maximum = b.map_elements(b.fmax, maximum, other)
    return maximum, [b.map_elements(row.alpha, own, maximum) for own in maxima]


def weighed(l_partial: list[Value], factors: list[Value]) -> Value:
    """The sum of fragments [rows], each times its factors."""
    return _added([b.map_elements(b.fmul, *pair) for pair in zip(l_partial, factors, strict=True)])


def weighed_rows(sums: list[Value], factors: list[Value]) -> Value:
    """The sum of fragments [rows, columns], each times its rows' factors."""
    return _added([b.times_rows(*pair) for pair in zip(sums, factors, strict=True)])


def _added(fragments: list[Value]) -> Value:
    total, *others = fragments
    for other in others:
        total = b.map_elements(b.fadd, total, other)
    return total
