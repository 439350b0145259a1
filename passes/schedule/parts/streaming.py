"""The roles of a kernel that streams keys and values past few queries, which stay in registers.

Each warp of `attend` owns a strip of every key tile, for both products, and a maximum, a sum and an
O of its own: warps meet once per work tile, in `merge`, and never on the way. See
`kernels.streaming` for who hands what to whom.
"""

import math

from attn_mlir.dialect._mlir import ir

from . import builder as b
from .kv_source import KVSource
from .masking import Test
from .online import Row, is_large
from .problem import Problem, Value, WorkTile
from .scores import reciprocal, seen, store_lse, weights, with_sink
from .visited import visit

STRIP_KEYS = 32  # of a key tile, a warp's: a word of a mask, and two products' K of 16 bits
SUM_COLUMNS = 32  # of O at a time: what is loaded of V beside it takes 16 registers


class StreamStorage:
    """The rings of the kernel; `warps` are those that attend, each with a way of its own."""

    def __init__(self, problem: Problem, warps: int):
        config, element = problem.config, problem.element
        f32 = ir.F32Type.get()
        rows, columns = config.tile_m, problem.v_columns
        self.warps = warps
        self.q = b.Ring("q", b.tile([rows, problem.columns], element, "shared"), stages=2)
        widest = max(problem.columns, columns)
        keys = b.tile([config.tile_n, widest], element, "shared")
        self.kv = b.Ring("kv", keys, stages=config.kv_stages)
        self.maxima = b.Ring("maxima", b.tile([rows], f32, "shared"), ways=warps)
        self.totals = b.Ring("totals", b.tile([rows], f32, "shared"), ways=warps)
        self.sums = b.Ring("sums", b.tile([rows, columns], f32, "shared"), ways=warps)
        self.out = b.Ring("out", b.tile([rows, columns], problem.output, "shared"))


def stream(problem: Problem, storage: StreamStorage, source: KVSource, tile: WorkTile) -> None:
    """Fills Q once, then the K/V ring in the order K(0) V(0) K(1) V(1) ...; one thread."""
    config, keys = problem.config, problem.keys(tile)
    slot = storage.q.acquire()
    position = problem.first_position(tile, 0)
    problem.queries.load(slot, tile.queries, tile.head, position)
    b.commit(slot, "copy_engine")

    def turn_of(turn: Value) -> list[Value]:
        column = keys.first_column(turn)
        for columns, load in (
            (problem.columns, source.load_keys),
            (problem.v_columns, source.load_values),
        ):
            slot = storage.kv.acquire()
            load(b.view(slot, [config.tile_n, columns], problem.element), tile, column)
            b.commit(slot, "copy_engine")
        return []

    b.loop(0, keys.count, [], turn_of)


def attend(problem: Problem, storage: StreamStorage, tile: WorkTile, warp: Value) -> None:
    """Online softmax of the queries over one strip of each key tile, by one warp."""
    config, element = problem.config, problem.element
    rows = config.tile_m
    keys = problem.keys(tile)
    scale = problem.score_scale(tile)
    row = Row.of(problem, scale)
    row0 = problem.first_position(tile, 0)
    first = b.INT.mul(warp, STRIP_KEYS)
    zero = b.f32_constant(0.0)

    slot = storage.q.wait()
    queries = b.load(slot)
    b.release(slot, "threads")

    def strip(slot: Value, columns: int) -> Value:
        tile = b.view(slot, [config.tile_n, columns], element)
        return b.rows(tile, first, STRIP_KEYS)

    def turn_of(
        test: Test | None, turn: Value, maximum: Value, total: Value, *sums: Value
    ) -> list[Value]:
        slot = storage.kv.wait()
        scores = b.fill([rows, STRIP_KEYS], zero)
        scores = b.dot(scores, queries, b.load(strip(slot, problem.columns)), b_layout="nk")
        b.release(slot, "threads")
        scores = seen(problem, tile, scores, test, keys, turn, row0, scale, first)
        found = b.reduce_rows("max", scores, maximum)
        factor = b.map_elements(row.factor, maximum, found)
        maximum = b.map_elements(row.maximum, maximum, found)
        offset = b.map_elements(row.offset, maximum)
        (weighed,) = b.chosen(
            b.any_row(b.map_elements(is_large, offset, element=b.i1())),
            [scores.type],
            lambda: [weights(problem, row, *row.exact(scores, offset, maximum))],
            lambda: [weights(problem, row, scores, offset)],
        )
        total = b.reduce_rows("add", weighed, b.map_elements(b.fmul, total, factor))
        narrow = b.map_elements(lambda p: b.truncate(p, element), weighed, element=element)
        slot = storage.kv.wait()
        values = strip(slot, problem.v_columns)
        scaled = [_times(x, factor) for x in sums]
        parts = _columns(problem.v_columns)
        following = [
            b.dot(x, narrow, b.load(b.columns(values, *part)), b_layout="kn")
            for x, part in zip(scaled, parts, strict=True)
        ]
        b.release(slot, "threads")
        return [maximum, total, *following]

    state = [b.fill([rows], b.f32_constant(-math.inf)), b.fill([rows], zero)]
    state += [b.fill([rows, count], zero) for _, count in _columns(problem.v_columns)]
    maximum, total, *sums = visit(keys, keys.phases(0), state, turn_of)
    for ring, value in ((storage.maxima, maximum), (storage.totals, total)):
        slot = ring.acquire(warp)
        b.store(value, slot)
        b.commit(slot, "threads")
    slot = storage.sums.acquire(warp)
    for x, part in zip(sums, _columns(problem.v_columns), strict=True):
        b.store(x, b.columns(slot, *part))
    b.commit(slot, "threads")


def merge(problem: Problem, storage: StreamStorage, tile: WorkTile) -> None:
    """Adds up what the warps have found, each by its maximum; writes O / l and the LSE.

    With the maximum m of all, l = sum of l(w) 2^((m(w) - m) c), and O so as well.
    """
    row = Row.of(problem, problem.score_scale(tile))
    row0 = problem.first_position(tile, 0)
    warps = range(storage.warps)
    rings = (storage.maxima, storage.totals, storage.sums)
    slots = [[ring.wait(warp) for warp in warps] for ring in rings]
    maxima, totals = ([b.load(slot) for slot in some] for some in slots[:2])
    maximum = maxima[0]
    for other in maxima[1:]:
        maximum = b.map_elements(b.fmax, maximum, other)
    factors = [b.map_elements(row.factor, own, maximum) for own in maxima]
    total = _added([b.map_elements(b.fmul, *pair) for pair in zip(totals, factors, strict=True)])
    divisor = with_sink(problem, row, tile, row0, maximum, total)
    output = problem.output_factor(tile)
    inverse = b.map_elements(lambda t: reciprocal(t, output), divisor)
    store_lse(problem, row, tile, row0, maximum, total)
    out = storage.out.acquire()
    for part in _columns(problem.v_columns):
        found = [b.load(b.columns(slot, *part)) for slot in slots[2]]
        summed = _added([_times(*pair) for pair in zip(found, factors, strict=True)])
        b.store(_rounded(problem, _times(summed, inverse)), b.columns(out, *part))
    for some in slots:
        for slot in some:
            b.release(slot, "threads")
    b.commit(out, "threads")


def leave(problem: Problem, storage: StreamStorage, tile: WorkTile) -> None:
    """Writes the finished O tile; rows past the end of the sequence are dropped."""
    slot = storage.out.wait()
    position = problem.first_position(tile, 0)
    problem.queries.store(slot, tile.results, tile.head, position)
    b.release(slot, "copy_engine")


def _columns(count: int) -> list[tuple[int, int]]:
    """The first column and the number of columns of each part of O that is worked on at a time."""
    return [(first, min(SUM_COLUMNS, count - first)) for first in range(0, count, SUM_COLUMNS)]


def _times(fragment: Value, factor: Value) -> Value:
    """Each row times its factor."""
    columns = b.shape_of(fragment)[1]
    return b.map_elements(b.fmul, fragment, b.broadcast(factor, columns))


def _added(fragments: list[Value]) -> Value:
    total, *others = fragments
    for other in others:
        total = b.map_elements(b.fadd, total, other)
    return total


def _rounded(problem: Problem, fragment: Value) -> Value:
    if isinstance(problem.output, ir.F32Type):
        return fragment
    return b.map_elements(lambda x: b.truncate(x, problem.output), fragment, element=problem.output)
