"""RoPE of new keys: rotates their first columns by the angles of their positions."""

from typing import Any

from attn_mlir.dialect._mlir import arith, ir

from .. import emit as b
from .roles import Problem, RowState, WorkTile, as_f32, each_row, upcast

Value = Any


def rotated(problem: Problem, tile: WorkTile, rows: RowState, keys: list[Value]) -> list[Value]:
    """The keys with their first columns rotated; see `attn.append`."""
    arrays = problem.arrays
    width, rotated = problem.width, problem.rotary_dim // problem.width
    positions = each_row(problem, lambda row: problem.k.place(arrays, problem.token(tile, row))[0])
    if problem.interleaved:
        pairs_of_tiles = [
            _neighbours(problem, tile, rows, positions, c * width) for c in range(rotated)
        ]
        first = [_rotated_pair(x, *terms) for x, terms in zip(keys, pairs_of_tiles, strict=False)]
        return [*first, *keys[rotated:]]
    half = rotated // 2
    cos, sin = (
        [b.load_rows(angle, positions, width, [0, c * width], [0, 1]) for c in range(half)]
        for angle in problem.angles
    )
    low, high = keys[:half], keys[half:rotated]
    pairs = list(zip(low, high, cos, sin, strict=True))
    results = [_rotated_pair(x, y, c, s, -1.0) for x, y, c, s in pairs]
    results += [_rotated_pair(y, x, c, s, 1.0) for x, y, c, s in pairs]
    return [*results, *keys[rotated:]]


def _rotated_pair(x: Value, y: Value, cos: Value, sin: Value, sign: float = 1.0) -> Value:
    """x cos + sign y sin, in f32."""

    def element(x: Value, y: Value, cos: Value, sin: Value) -> Value:
        return b.fma(x, cos, b.fmul(y if sign > 0 else b.fneg(y), sin))

    return b.map_elements(element, *map(upcast, (x, y, cos, sin)))


def _neighbours(
    problem: Problem, tile: WorkTile, rows: RowState, positions: Value, first: int
) -> tuple[Value, Value, Value]:
    """For columns from `first` on: the other column of each pair with its sign, cos and sin.

    They are loaded one by one: a pair is in 4 bytes that the thread has just loaded.
    """
    f32, width = ir.F32Type.get(), problem.width

    def other(token: Value, row: Value, column: Value) -> Value:
        pair = arith.XOrIOp(column, b.constant(1)).result
        coords = [token]
        if len(problem.token_dims) > 1:
            inner = b.extent(problem.k_new, 1)
            outer = b.INT.floordiv(b.INT.max(token, 0), inner)
            coords = [outer, b.INT.sub(token, b.INT.mul(outer, inner))]
        x = as_f32(b.element(problem.k_new, [*coords, tile.head, b.INT.add(pair, first)]))
        return b.select(b.compare("sgt", pair, column), b.fneg(x), x)

    def angle(of: Value) -> Value:
        def element(position: Value, row: Value, column: Value) -> Value:
            pair = arith.ShRUIOp(b.INT.add(column, first), b.constant(1)).result
            return as_f32(b.element(of, [position, pair]))

        return b.map_coordinates(element, b.broadcast(positions, width), element=f32)

    cos, sin = problem.angles
    return (
        b.map_coordinates(other, b.broadcast(rows.read, width), element=f32),
        angle(cos),
        angle(sin),
    )
