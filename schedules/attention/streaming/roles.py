"""The roles of a kernel that streams keys and values past few queries, which stay in registers.

Each warp of `attend` owns a key slice of every key tile, for both products, and has its own m_i,
l_i and O: warps meet only once per work tile, in `merge`. If O is too wide for the registers of a
warp, several warps share a key slice: each computes its weights and owns a slice of O's columns.
With two query tiles, two warps share a key slice as well, one per query tile. The ring graph is in
`kernel.py`.
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
from attn_mlir.schedules.operands.widen import UpcastQueries, upcast
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

from .position_scales import (
    GroupWeights,
    OperandPair,
    PrefetchedScales,
    scaled_weights,
    unscaled_accumulators,
    with_group,
)

SUM_COLUMNS = 32  # of O at a time: the columns of V take 16 registers
DEPTH_COLUMNS = 64  # of Q and K at a time: the columns of K take 32 registers
MAX_REGISTER_COLUMNS = 304  # of Q and O together in registers; beyond, Q is read for each product
MAX_REGISTER_COLUMNS_OF_GROUPS = 224  # where a row of K or V has several scales
MAX_REGISTER_COLUMNS_OF_TILES = 240  # with two query tiles and pairs of f32


class Share(NamedTuple):
    """The work of a warp of `attend`.

    Attributes:
      q_tile: number of the query tile.
      slice: number of the slice of O's columns; a value if one role has all slices.
      key_slice: number of the key slice of each key tile.
      warp: number among the attending warps.
    """

    q_tile: int
    slice: Value | int
    key_slice: Value
    warp: Value


class StreamingStorage:
    """The rings of the kernel.

    Attributes:
      key_slices: key slices of a key tile.
      q_tiles: query tiles of a work tile.
      slices: slices of O's columns.
      groups: groups of `key_slices` warps, one for each slice of each query tile, slices innermost;
        warp `group` x `key_slices` + `key_slice` uses the ring instance of that number.
      roles: attending roles, with equally many groups each. One per query tile if all slices have
        the same code: each begins with a line of V and none has scales.
      slice_columns: columns of a slice of O.
      columns: columns of all slices, at least those of O; the ones past O are 0.
      published_columns: columns that a warp publishes at a time.
      packs_f32: whether f32 lie in pairs of neighbouring registers.
    """

    def __init__(self, problem: Problem, target: Target, box_rows: int):
        """Declares the rings; copies of K and V have `box_rows` rows.

        Boxes wider than a line of 128 bytes lie side by side, so that one copy fills each; as rows
        of one tile they would need a copy for each line.
        """
        config, element, stored = problem.config, problem.element, problem.stored
        self.key_slices = config.tile_n // SLICE_KEYS
        slices = Slices.of(problem.v_columns)
        self.slices, self.slice_columns = slices
        self.published_columns = slices.published_columns
        self.q_tiles, self.groups = config.q_tiles, config.q_tiles * self.slices
        self.packs_f32 = Feature.PACKED_F32 in target.features
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
        self._declare_results(problem)

    def _declare_results(self, problem: Problem) -> None:
        """The rings of the warps' results, an instance for each warp, and the ring of O."""
        rows, f32, warps = problem.config.tile_m, ir.F32Type.get(), self.groups * self.key_slices
        self.maxima = b.Ring("maxima", b.tile([rows], f32, "shared"), instances=warps)
        self.row_sums = b.Ring("totals", b.tile([rows], f32, "shared"), instances=warps)
        self.accumulators = b.Ring(
            "sums", b.tile([rows, self.published_columns], f32, "shared"), instances=warps
        )
        out = b.tile([rows, self.columns], problem.output, "shared")
        self.out = b.Ring("out", out, instances=self.q_tiles)

    @property
    def max_register_columns(self) -> int:
        """Columns of Q and O together that fit in registers."""
        has_pairs = self.packs_f32 and self.q_tiles > 1
        return MAX_REGISTER_COLUMNS_OF_TILES if has_pairs else MAX_REGISTER_COLUMNS

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """First column and column count of each chunk of a slice of O."""
        return column_ranges(self.slice_columns, SUM_COLUMNS)

    def share(self, role: int, number: Value) -> Share:
        """The work of warp `number` of a role."""
        inside = self.groups // self.roles
        first = role * inside
        q_tile, slice_ = divmod(first, self.slices)
        warp = b.INT.add(number, first * self.key_slices) if first else number
        if inside == 1:
            return Share(q_tile, slice_, number, warp)
        own_slice = b.INT.floordiv(number, self.key_slices)
        key_slice = b.INT.sub(number, b.INT.mul(own_slice, self.key_slices))
        return Share(q_tile, own_slice, key_slice, warp)

    def values(self, key_slice: Value, slice_: Value | int) -> Value:
        """The columns of a slice of O in a key slice of V."""
        if isinstance(slice_, int):
            return b.columns(key_slice, slice_ * self.slice_columns, self.slice_columns)
        first = b.INT.mul(slice_, self.slice_columns)
        return b.columns_at(key_slice, first, self.slice_columns)

    def publish(self, share: Share, maximum: Value, total: Value, *accumulators: Value) -> None:
        """Hands a warp's m_i, l_i and O to the roles that add them up.

        Args:
          accumulators: the warp's slice of O, in `chunks`.
        """
        warp = share.warp
        for ring, value in ((self.maxima, maximum), (self.row_sums, total)):
            publish(ring, warp, value)
        some = len(accumulators) * self.published_columns // self.slice_columns
        for first in range(0, len(accumulators), some):
            slot = self.accumulators.acquire(warp)
            for x, columns in zip(accumulators[first : first + some], self.chunks, strict=False):
                b.store(x, b.columns(slot, *columns))
            b.commit(slot, "threads")


def publish(ring: b.Ring, instance: Value, value: Value) -> None:
    """Fills a slot with a fragment."""
    slot = ring.acquire(instance)
    b.store(value, slot)
    b.commit(slot, "threads")


class Groups(NamedTuple):
    """Columns of K and V grouped by common scale; one group without scales.

    Attributes:
      depth: columns of K per product, within one group.
      key: columns of a group of K.
      keys: number of groups of K.
      values: numbers of the groups of V in a warp's slice of O; empty without position scales.
      members: for each of these, or for all of V, the numbers of its chunks of the slice.
    """

    depth: int
    key: int
    keys: int
    values: Sequence[int]
    members: Sequence[Sequence[int]]

    @property
    def has_several(self) -> bool:
        """Whether a row of K, or of a warp's slice of V, has several scales."""
        return max(self.keys, len(self.values)) > 1

    @classmethod
    def of(cls, problem: Problem, storage: StreamingStorage, slice_: Value | int) -> "Groups":
        """The groups of a problem and a slice of its O; with scales, `slice_` is an int."""
        firsts = [first for first, _ in storage.chunks]
        depth = DEPTH_COLUMNS if storage.slices == 1 else SUM_COLUMNS
        if problem.position_scales is None:
            return cls(depth, problem.columns, 1, (), [range(len(firsts))])
        k, v = problem.position_scales
        keys = problem.head_dim // k.group
        depth = depth if keys == 1 else math.gcd(k.group, depth)
        last = problem.v_head_dim // v.group - 1
        own_groups = [min((slice_ * storage.slice_columns + x) // v.group, last) for x in firsts]
        values = range(own_groups[0], own_groups[-1] + 1)
        members = [[n for n, group in enumerate(own_groups) if group == value] for value in values]
        return cls(depth, problem.columns if keys == 1 else k.group, keys, values, members)


class Queries:
    """The query rows as operands of a warp's products, in registers or loaded for each product."""

    def __init__(
        self,
        problem: Problem,
        tile: Value,
        ranges: Sequence[tuple[int, int]],
        *,
        in_registers: bool,
    ):
        """Splits the columns of a tile into `ranges`: first column and column count."""
        self._tile, self._ranges = tile, ranges
        is_read = in_registers or problem.upcasts
        loaded = [b.load(b.columns(tile, *columns)) for columns in ranges] if is_read else []
        self._upcast = UpcastQueries(loaded) if problem.upcasts else None
        self._registers = [self._converted(x) for x in loaded] if in_registers else []

    def _converted(self, columns: Value) -> Value:
        return columns if self._upcast is None else self._upcast.operand(columns)

    def operand(self, number: int) -> Value:
        """The operand of range `number`; a bf16 one is scaled, which `scores` undoes."""
        if self._registers:
            return self._registers[number]
        return self._converted(b.load(b.columns(self._tile, *self._ranges[number])))

    def scores(self, products: Value) -> Value:
        """The products without the scaling of the queries."""
        undo = None if self._upcast is None else self._upcast.undo
        return products if undo is None else b.times_rows(products, undo)


def attend(
    problem: Problem, storage: StreamingStorage, tile: WorkTile, role: int, number: Value
) -> None:
    """Online softmax of a query tile over a key slice of each key tile, by warp `number`."""
    config, upcasts, shared = problem.config, problem.upcasts, problem.shares_rows
    rows = config.tile_m
    share = storage.share(role, number)
    q_tile = share.q_tile
    key_tiles = problem.column_tiles(tile)
    tile = problem.query_tile(tile, q_tile)
    scale = problem.score_scale(tile)
    row = Row.of(problem, scale)
    row0 = problem.first_position(tile, q_tile)
    first = b.INT.mul(share.key_slice, SLICE_KEYS)
    zero = b.f32_constant(0.0)
    chunks = storage.chunks

    q_slot = storage.q.wait(q_tile)
    groups = Groups.of(problem, storage, share.slice)
    max_register_columns = (
        MAX_REGISTER_COLUMNS_OF_GROUPS if groups.has_several else storage.max_register_columns
    )
    in_registers = problem.columns + storage.slice_columns <= max_register_columns
    depths = column_ranges(problem.columns, groups.depth)
    queries = Queries(problem, b.rows(q_slot, 0, rows), depths, in_registers=in_registers)
    if in_registers:
        b.release(q_slot, "threads")

    def operand(tile: Value) -> Value:
        """Columns of K or V in the element type of the products."""
        return upcast(b.load(tile)) if upcasts else b.load(tile)

    def products(slot: Value, key_scales: Sequence[Value]) -> Value:
        """The scores of a key slice, multiplied by the key scales only."""
        total: Value | None = None
        scores = b.fill([rows, SLICE_KEYS], zero)
        for number, columns in enumerate(depths):
            pair = queries.operand(number), operand(b.columns(slot, *columns))
            scores = b.dot(scores, *pair, b_layout="nk", upcasts=upcasts)
            group, rest = divmod(sum(columns), groups.key)
            if key_scales and rest == 0:
                total = with_group(total, scores, key_scales[group - 1])
                scores = b.fill([rows, SLICE_KEYS], zero)
        return queries.scores(scores if total is None else total)

    def key_slice(slot: Value, columns: int) -> Value:
        boxes = as_filled(slot, config.tile_n, columns, problem.stored)
        return b.rows(b.view(boxes, [config.tile_n, columns], problem.stored), first, SLICE_KEYS)

    def iteration(test: Test | None, index: Value, *state: Value) -> list[Value]:
        row_state, state = RowState(*state[:STATE_VALUES]), state[STATE_VALUES:]
        ends = len(chunks), len(chunks) + len(groups.values)
        accumulators, largest = state[: ends[0]], [*state[slice(*ends)]]
        scale_state = state[ends[1] :]
        scales = OperandPair((), ()) if prefetched is None else prefetched.scales(scale_state)
        slot = storage.k.wait()
        scores = products(key_slice(slot, problem.columns), scales.keys)
        if not shared:
            b.release(slot, "threads")
        scores = masked_scores(problem, tile, scores, test, key_tiles, index, row0, scale, first)
        step = softmax_step(problem, row, scores, row_state)
        following = [] if prefetched is None else prefetched.following(index, scale_state)
        plain = None
        if prefetched is None:
            plain = GroupWeights(b.rounded(step.weights, problem.product), step.alpha)
        if not shared:
            slot = storage.v.wait()
        values = key_slice(slot, problem.columns if shared else storage.columns)
        values = storage.values(values, share.slice)
        added: list[Value] = []
        for number, members in enumerate(groups.members):
            by = plain or scaled_weights(
                step, scales.values[number], largest[number], problem.product
            )
            for member in members:
                x = b.times_rows(accumulators[member], by.alpha)
                v = operand(b.columns(values, *chunks[member]))
                added.append(b.dot(x, by.weights, v, b_layout="kn", upcasts=upcasts))
            largest[number : number + 1] = by.largest
        b.release(slot, "threads")
        return [*step.rows, *added, *largest, *following]

    state = [*RowState.empty(row, rows)]
    state += [b.fill([rows, count], zero) for _, count in chunks]
    prefetched = None
    if problem.position_scales is not None:
        prefetched = PrefetchedScales(problem, tile, key_tiles, first, SLICE_KEYS, groups.values)
        state += [b.fill([rows], zero) for _ in groups.values]
        state += prefetched.start()
    if shared:  # long products: tests cost less than a second loop, whose code is as long
        state = b.loop(0, key_tiles.count, state, lambda *args: iteration(Test.ALL, *args))
    else:
        state = loop_over_tiles(key_tiles, key_tiles.phases(q_tile), state, iteration)
    row_state, state = RowState(*state[:STATE_VALUES]), state[STATE_VALUES:]
    accumulators, largest = state[: len(chunks)], state[len(chunks) :]
    if prefetched is not None:
        maxima = [x for x, members in zip(largest, groups.members, strict=False) for _ in members]
        accumulators = [
            unscaled_accumulators(*pair) for pair in zip(accumulators, maxima, strict=True)
        ]
    if not in_registers:
        b.release(q_slot, "threads")
    storage.publish(share, row_state.maximum, row_state.total(), *accumulators)


def merge(problem: Problem, storage: StreamingStorage, tile: WorkTile) -> None:
    """Merges the warps' m_i, l_i and O; writes O / l and the LSE.

    With the maximum m of all warps w, l = sum of l(w) 2^((m(w) - m) c); O likewise.
    """
    row = Row.of(problem, problem.score_scale(tile))
    for q_tile in range(storage.q_tiles):
        _merge(problem, storage, problem.query_tile(tile, q_tile), row, q_tile)


def _merge(
    problem: Problem, storage: StreamingStorage, tile: WorkTile, row: Row, q_tile: int
) -> None:
    """Merges the results of one query tile."""
    row0 = problem.first_position(tile, q_tile)
    in_tile = storage.slices * storage.key_slices
    warps = range(q_tile * in_tile, (q_tile + 1) * in_tile)
    slots = [[ring.wait(warp) for warp in warps] for ring in (storage.maxima, storage.row_sums)]
    maxima, row_sums = ([b.load(slot) for slot in some[: storage.key_slices]] for some in slots)
    maximum, alphas = common_maximum(row, maxima)
    total = scaled_sum(row_sums, alphas)
    divisor = with_sink(problem, row, tile, row0, maximum, total)
    output = problem.output_scale(tile)
    inverse = b.map_elements(lambda t: reciprocal(t, output), divisor)
    store_lse(problem, row, tile, row0, maximum, total)
    out = storage.out.acquire(q_tile)
    for slice_ in range(storage.slices):
        of_slice = warps[slice_ * storage.key_slices :][: storage.key_slices]
        for begin in range(0, storage.slice_columns, storage.published_columns):
            published = [storage.accumulators.wait(warp) for warp in of_slice]
            for first, count in column_ranges(storage.published_columns, SUM_COLUMNS):
                accumulators = [b.load(b.columns(slot, first, count)) for slot in published]
                summed = scaled_row_sum(accumulators, alphas)
                column = slice_ * storage.slice_columns + begin + first
                value = b.rounded(b.times_rows(summed, inverse), problem.output)
                b.store(value, b.columns(out, column, count))
            for slot in published:
                b.release(slot, "threads")
    for some in slots:
        for slot in some:
            b.release(slot, "threads")
    b.commit(out, "threads")


def column_ranges(count: int, most: int) -> list[tuple[int, int]]:
    """First column and column count of each range of at most `most` of `count` columns."""
    return [(first, min(most, count - first)) for first in range(0, count, most)]


def common_maximum(row: Row, maxima: list[Value]) -> tuple[Value, list[Value]]:
    """The common maximum, and alpha for each of the maxima."""
    maximum = maxima[0]
    for other in maxima[1:]:
        maximum = b.map_elements(b.fmax, maximum, other)
    return maximum, [b.map_elements(row.alpha, x, maximum) for x in maxima]


def scaled_sum(row_sums: list[Value], alphas: list[Value]) -> Value:
    """The sum of fragments [rows], each times its alpha."""
    return _added([b.map_elements(b.fmul, *pair) for pair in zip(row_sums, alphas, strict=True)])


def scaled_row_sum(accumulators: list[Value], alphas: list[Value]) -> Value:
    """The sum of fragments [rows, columns], each row times its alpha."""
    return _added([b.times_rows(*pair) for pair in zip(accumulators, alphas, strict=True)])


def _added(fragments: list[Value]) -> Value:
    total, *others = fragments
    for other in others:
        total = b.map_elements(b.fadd, total, other)
    return total
