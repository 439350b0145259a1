"""L2 prefetches of a kernel while the previous kernel still runs.

With overlapping launches a CTA starts before it may read. It prefetches its first reads: index
arrays, and keys and values whose address follows from sizes alone.

Measured on an H200 (`bench/decode.py`, graphs of calls in a row, 2026-11-23), where the next launch
is let go at once as well: pages of 16 take 10.9 instead of 12.2 us for one sequence of 4096 keys
and 24.3 instead of 27.0 for 16384, pages of 64 10.4 instead of 11.6 and 23.4 instead of 24.2. Three
key tiles of a cache in one piece: 10.1 instead of 11.0 us for work tiles of 4 key tiles; 23.9
instead of 23.6 for those of 16, hence `SHORT`. More tiles are slower (11.1 us with four).
"""

from attn_mlir.dialect._mlir import ir

from .. import emit as b
from ..core.problem import Problem, Value, WorkTile
from .kv_source import StreamedKV

LINE_ELEMENTS = 1024  # of a list, prefetched by one CTA
TILES = 3  # key tiles prefetched for a work tile
SHORT = 4  # most key tiles of a work tile with prefetches


def prefetch_first_tiles(problem: Problem, source: StreamedKV) -> None:
    """Prefetches the first reads of a CTA's first work tile; one thread."""
    number = b.cta()
    for array in dict.fromkeys((*problem.key_sequences.lists, *source.lists)):
        _fetch_list(array, number)
    lists = *problem.key_sequences.lists, *problem.query_sequences.lists
    lists += () if problem.offsets is None else problem.offsets.lists
    if problem.config.tile_order != "persistent" or lists:
        return
    tile = _first_tile(problem, number)
    tiles = problem.column_tiles(tile)

    def fetch(index: Value) -> list[Value]:
        source.fetch(tile, tiles.first_column(index))
        return []

    with b.when(b.compare("sle", tiles.count, SHORT)):
        b.loop(0, b.INT.min(tiles.count, TILES), [], fetch)


def _first_tile(problem: Problem, number: Value) -> WorkTile:
    """The work tile that a CTA begins with in the order `persistent`."""
    coords: list[Value] = []
    for extent in problem.tile_space():
        quotient = b.INT.floordiv(number, extent)
        coords.append(b.INT.sub(number, b.INT.mul(quotient, extent)))
        number = quotient
    return problem.work_tile(*coords)


def _fetch_list(array: Value, number: Value) -> None:
    """Prefetches a CTA's share of an index array: a row of a table, or some elements of a list."""
    *rows, columns = (b.extent(array, dim) for dim in range(ir.MemRefType(array.type).rank))
    for count in rows:
        with b.when(b.compare("slt", number, count)), b.when(b.compare("sgt", columns, 0)):
            b.prefetch_line(array, [number, 0], columns)
        return
    first = b.INT.mul(number, LINE_ELEMENTS)
    with b.when(b.compare("slt", first, columns)):
        b.prefetch_line(array, [first], b.INT.min(b.INT.sub(columns, first), LINE_ELEMENTS))
