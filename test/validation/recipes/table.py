"""The ways in which operands are copied by boxes, each as a recipe, an operand and boxes of it.

Every operand is small and lies in memory as serving systems have it: pages of a pool that holds K and V
of each page side by side, rows of bytes that are 8-bit numbers first and 16-bit ones then, scales in
planes. Rows of a pool count through all of it ("virtual rows"): token t of page p is row
p * PITCH + t, so that one map serves every sequence, and an entry of a page table is a coordinate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_mlir.runtime.kernel import Kernel
from attn_mlir.validation.recipes.mover import byte_count, move_boxes, unswizzled

Array = Any
Place = tuple[int, ...]
PAGES, PAGE, HEADS = 3, 16, 2
PITCH = 2 * PAGE  # rows from page to page: those of V lie between
ROWS = (PAGES - 1) * PITCH + PAGE  # from the first row of K to the last
LINE = 64  # 16-bit elements in the 128 bytes of a swizzle
TILE = 8  # rows of the copies of ragged operands
LENGTHS = (3, 8, 1, 9)  # of the sequences of a ragged operand
TOTAL = sum(LENGTHS)
MIXED_BYTES, ROPE_AT = 656, 528  # a row of 512 8-bit numbers, 4 scales in f32 and 64 16-bit numbers


@dataclass(frozen=True)
class Numbers:
    """What a map is made of, innermost dimension first, as `cuTensorMapEncodeTiled` takes it."""

    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    base: int = 0  # bytes behind the tensor's address


@dataclass(frozen=True)
class Instance:
    """One way of copying boxes.

    Attributes:
      dtype, shape: of the operand; names are sizes of a call.
      operand: makes it.
      recipe: the fields of the tensor map in the bundle.
      numbers: what the map has to be for this operand, written out.
      boxes: where copies begin, and what they bring: arrays in the order of the map, slowest first.
      gathers: copies take four rows; only sm_100a has them.
    """

    dtype: str
    shape: tuple[int | str, ...]
    operand: Callable[[], Array]
    recipe: Mapping[str, Any]
    numbers: Numbers
    boxes: Callable[[Array], Iterator[tuple[Place, Array]]]
    gathers: bool = False

    def kernel(self, target: str) -> Kernel:
        """What copies boxes by the recipe."""
        return move_boxes(self.recipe, self.dtype, self.shape, target, gathers=self.gathers)

    def call(self) -> tuple[Array, Array, Array]:
        """Arguments of the kernel."""
        x = self.operand()
        where = np.array([place for place, _ in self.boxes(x)], np.int32)
        count = byte_count(self.recipe, self.dtype, gathers=self.gathers)
        return x, where, np.full((len(where), count), 0xEE, np.uint8)

    def check(self, x: Array, y: Array) -> None:
        """Every byte of every box is right."""
        found = unswizzled(y, self.recipe["swizzle"])
        for (place, wanted), raw in zip(self.boxes(x), found, strict=True):
            assert raw.tobytes() == np.ascontiguousarray(wanted).tobytes(), f"the box at {place}"


def _dim(extent: Any, axis: int, step: int = 1, **more: int) -> dict[str, Any]:
    return {"extent": extent, "axis": axis, "step": step, **more}


def _merged(extent: str, **more: int) -> dict[str, Any]:
    return {"outer": 0, "inner": 1, "extent": extent, **more}


def _numbers(*shape: int, dtype: Any = np.float16) -> Array:
    return np.random.default_rng(0).integers(1, 200, shape).astype(dtype)


def _pool(width: int) -> Array:
    """K of a pool whose pages hold K and V: [PAGES, PAGE, HEADS, width] f16."""
    return _numbers(PAGES, 2, PAGE, HEADS, width)[:, 0]


def _bytes(width: int) -> Array:
    """Rows of bytes of one head, [PAGES, PAGE, width], with as many rows of others between pages."""
    return _numbers(PAGES, 2, PAGE, width, dtype=np.uint8)[:, 0]


def _rows(x: Array, first: int, count: int) -> Array:
    """Rows of a pool from one on, of which each is in a page or behind the pool: zeros."""
    found = np.zeros((count, *x.shape[2:]), x.dtype)
    for i, row in enumerate(range(first, first + count)):
        if row < ROWS:
            found[i] = x[row // PITCH, row % PITCH]
    return found


def _columns(rows: Array, first: int, count: int) -> Array:
    """Columns of rows, with zeros behind the last."""
    found = np.zeros((*rows.shape[:-1], count), rows.dtype)
    part = rows[..., first : first + count]
    found[..., : part.shape[-1]] = part
    return found


# A page of the table each, and the last half page with what lies behind the pool.
_STARTS = (2 * PITCH, 0, PITCH, ROWS - PAGE // 2)


def _plain_boxes(x: Array) -> Iterator[tuple[Place, Array]]:
    for row in _STARTS:
        for head in range(HEADS):
            for column in range(0, x.shape[-1], LINE):
                part = _rows(x, row, PAGE)[:, head]
                yield (column, head, row), _columns(part, column, LINE)


def _folded_boxes(x: Array) -> Iterator[tuple[Place, Array]]:
    """One copy for all columns: a block of rows for each line of columns."""
    for row in _STARTS:
        for head in range(HEADS):
            part = _rows(x, row, PAGE)[:, head].reshape(PAGE, -1, LINE)
            yield (0, row, 0, head), part.swapaxes(0, 1)


def _atom_boxes(x: Array) -> Iterator[tuple[Place, Array]]:
    """One copy for all columns: eight rows of one line of columns, then of the next."""
    for row in _STARTS:
        for head in range(HEADS):
            part = _rows(x, row, PAGE)[:, head].reshape(PAGE // 8, 8, -1, LINE)
            yield (0, 0, 0, row // 8, head), part.swapaxes(1, 2)


def _page_boxes(x: Array) -> Iterator[tuple[Place, Array]]:
    """Pages by their numbers, of which one is none, and a box that a page ends."""
    for page, token in ((2, 0), (0, 0), (PAGES, 0), (-1, 0), (1, 12)):
        for head in range(HEADS):
            part = np.zeros((PAGE, LINE), x.dtype)
            if 0 <= page < PAGES:
                part[: PAGE - token] = x[page, token:, head, :LINE]
            yield (0, token, head, page), part


def _tiles() -> Iterator[tuple[int, int]]:
    """First rows of the tiles of ragged sequences, and how many rows of each are theirs."""
    begin = 0
    for length in LENGTHS:
        for first in range(0, length, TILE):
            yield begin + first, min(TILE, length - first)
        begin += length


def _ragged_boxes(place: Callable[[int, int, int, int], Place]) -> Callable[[Array], Any]:
    """Tiles that end with their sequence, by head and line of columns."""

    def boxes(x: Array) -> Iterator[tuple[Place, Array]]:
        for first, count in _tiles():
            for head in range(HEADS):
                for column in range(0, x.shape[-1], LINE):
                    part = np.zeros((TILE, LINE), x.dtype)
                    part[:count] = x[first : first + count, head, column : column + LINE]
                    yield place(column, head, first, count), part

    return boxes


_GROUP = 2  # query heads of a group, which are rows of one tile


def _grouped_boxes(x: Array) -> Iterator[tuple[Place, Array]]:
    """Tiles of TILE / 2 tokens with both heads of a group."""
    tokens = TILE // _GROUP
    begin = 0
    for length in LENGTHS:
        for first in range(begin, begin + length, tokens):
            count = min(tokens, begin + length - first)
            for group in range(HEADS):
                part = np.zeros((tokens, _GROUP, LINE), x.dtype)
                heads = slice(group * _GROUP, (group + 1) * _GROUP)
                part[:count] = x[first : first + count, heads, :LINE]
                yield (0, 0, tokens - count, group, first + count), part
        begin += length


def _scale_boxes(x: Array) -> Iterator[tuple[Place, Array]]:
    """Scales of 16 keys of a head; behind the last key there are zeros."""
    for head in range(x.shape[0]):
        for key in (0, 16, x.shape[1] - 8):
            yield (key, head), _columns(x[head], key, 16)


def _index_boxes(x: Array) -> Iterator[tuple[Place, Array]]:
    """Scales of TILE keys from any one on: copies begin at a multiple of 16 bytes."""
    for first in (0, 5, PITCH + 3, ROWS - 7):
        begin = first // 4 * 4
        flat = _rows(x, begin, TILE + 4)
        assert (flat[first - begin :][: min(TILE, ROWS - first)] != 0).all()
        yield (begin,), flat


def _rope_boxes(x: Array) -> Iterator[tuple[Place, Array]]:
    """The 16-bit end of rows, and only that: columns behind it are zeros."""
    for row in _STARTS:
        part = _columns(_rows(x, row, PAGE), ROPE_AT, 2 * LINE)
        yield (0, 0, row), part[:, None]
        late = _columns(_rows(x, row, PAGE), ROPE_AT + 96, 2 * LINE)
        yield (48, 0, row), late[:, None]


_CHOSEN = ((5, PITCH + 2, 0, 2 * PITCH + 15), (-1, 1, ROWS, 2**31 - 1))  # what are none give zeros


def _gather_boxes(columns: Sequence[int], width: int, item: int, at: int = 0) -> Any:
    """Four rows each, `width` columns of `item` elements of the operand from a column on."""

    def boxes(x: Array) -> Iterator[tuple[Place, Array]]:
        for rows in _CHOSEN:
            for column in columns:
                found = np.zeros((4, x.shape[-1]), x.dtype)
                for i, row in enumerate(rows):
                    if 0 <= row < ROWS:
                        found[i] = x[row // PITCH, row % PITCH]
                yield (column, *rows), _columns(found, at + column * item, width * item)

    return boxes


def _ragged(width: int = 2 * LINE, heads: int = HEADS) -> Callable[[], Array]:
    return lambda: _numbers(TOTAL, heads, width)


def _plane() -> Array:
    """Scales [PAGES, PAGE] in f32, whose planes lie PITCH apart."""
    return _numbers(PAGES, PITCH, dtype=np.float32)[:, :PAGE]


_POOL_SHAPE = ("pages", PAGE, HEADS)
_ROW = HEADS * 2 * LINE * 2  # bytes of a row of 128 columns of all heads

INSTANCES: dict[str, Instance] = {
    "plain": Instance(
        "f16", (*_POOL_SHAPE, 96), lambda: _pool(96),
        {"box": [LINE, 1, PAGE], "swizzle": "128B", "merged": _merged("rows"),
         "dims": [_dim(96, 3), _dim(HEADS, 2), _dim("rows", 1)]},
        Numbers((96, HEADS, ROWS), (192, HEADS * 192)),
        _plain_boxes,
    ),
    "folded": Instance(
        "f16", (*_POOL_SHAPE, 128), lambda: _pool(128),
        {"box": [LINE, PAGE, 2, 1], "swizzle": "128B", "merged": _merged("rows"),
         "dims": [_dim(LINE, 3), _dim("rows", 1), _dim(2, 3, LINE), _dim(HEADS, 2)]},
        Numbers((LINE, ROWS, 2, HEADS), (_ROW, 2 * LINE, 4 * LINE)),
        _folded_boxes,
    ),
    "folded by 8 rows": Instance(
        "f16", (*_POOL_SHAPE, 128), lambda: _pool(128),
        {"box": [LINE, 8, 2, PAGE // 8, 1], "swizzle": "128B",
         "merged": _merged("rows", multiple=8),
         "dims": [_dim(LINE, 3), _dim(8, 1), _dim(2, 3, LINE),
                  _dim(["floordiv", "rows", 8], 1, 8), _dim(HEADS, 2)]},
        Numbers((LINE, 8, 2, ROWS // 8, HEADS), (_ROW, 2 * LINE, 8 * _ROW, 4 * LINE)),
        _atom_boxes,
    ),
    "ragged": Instance(
        "f16", ("total", HEADS, 128), _ragged(),
        {"box": [LINE, TILE, 1, 1], "swizzle": "128B",
         "dims": [_dim(128, 2), _dim(TILE, 0, first=-TILE), _dim(HEADS, 1),
                  _dim(["add", "total", 1], 0)]},
        Numbers((128, TILE, HEADS, TOTAL + 1), (_ROW, 4 * LINE, _ROW), -TILE * _ROW),
        _ragged_boxes(lambda column, head, i, n: (column, TILE - n, head, i + n)),
    ),
    "ragged, groups of heads": Instance(
        "f16", ("total", HEADS * _GROUP, LINE), _ragged(LINE, HEADS * _GROUP),
        {"box": [LINE, _GROUP, TILE // _GROUP, 1, 1], "swizzle": "128B",
         "dims": [_dim(LINE, 2), _dim(_GROUP, 1), _dim(TILE // _GROUP, 0, first=-TILE // _GROUP),
                  _dim(HEADS, 1, _GROUP), _dim(["add", "total", 1], 0)]},
        Numbers((LINE, _GROUP, TILE // _GROUP, HEADS, TOTAL + 1),
                (2 * LINE, _ROW, _GROUP * 2 * LINE, _ROW), -TILE // _GROUP * _ROW),
        _grouped_boxes,
    ),
    "ragged, rows and heads as one": Instance(
        "f16", ("total", HEADS, 128), _ragged(),
        {"box": [LINE, TILE, 1], "swizzle": "128B", "merged": _merged("both"),
         "dims": [_dim(128, 2), _dim(TILE, 1, HEADS, first=-TILE * HEADS),
                  _dim(["add", "both", HEADS], 1)]},
        Numbers((128, TILE, HEADS * (TOTAL + 1)), (_ROW, 4 * LINE), -TILE * _ROW),
        _ragged_boxes(lambda column, head, i, n: (column, TILE - n, (i + n) * HEADS + head)),
    ),
    "scales": Instance(
        "f32", (3, "keys"), lambda: _numbers(3, 40, dtype=np.float32),
        {"box": [16, 1], "swizzle": "none", "dims": [_dim("keys", 1), _dim(3, 0)]},
        Numbers((40, 3), (160,)),
        _scale_boxes,
    ),
    "scales, of one head": Instance(
        "f32", (1, "keys"), lambda: _numbers(1, 40, dtype=np.float32),
        {"box": [16, 1], "swizzle": "none", "dims": [_dim("keys", 1), _dim(1, 0)]},
        Numbers((40, 1), (160,)),
        _scale_boxes,
    ),
    "index scales": Instance(
        "f32", ("pages", PAGE), _plane,
        {"box": [TILE + 4], "swizzle": "none", "merged": _merged("rows"),
         "dims": [_dim("rows", 1)]},
        Numbers((ROWS,), ()),
        _index_boxes,
    ),
    "rope": Instance(
        "u8", ("pages", PAGE, 1, MIXED_BYTES), lambda: _bytes(MIXED_BYTES)[:, :, None],
        {"box": [LINE, 1, PAGE], "swizzle": "128B", "dtype": "bf16", "merged": _merged("rows"),
         "dims": [_dim(LINE, 3, first=ROPE_AT // 2), _dim(1, 2), _dim("rows", 1)]},
        Numbers((LINE, 1, ROWS), (MIXED_BYTES, MIXED_BYTES), ROPE_AT),
        lambda x: _rope_boxes(x[:, :, 0]),
    ),
    "gather4": Instance(
        "f16", ("pages", PAGE, 576), lambda: _numbers(PAGES, 2, PAGE, 576)[:, 0],
        {"box": [LINE, 1], "swizzle": "128B", "l2": "256B", "merged": _merged("rows"),
         "dims": [_dim(576, 2), _dim("rows", 1)]},
        Numbers((576, ROWS), (1152,)),
        _gather_boxes((0, 512), LINE, 1), gathers=True,
    ),
    "gather4, by 8 bytes": Instance(
        "u8", ("pages", PAGE, 576), lambda: _bytes(576),
        {"box": [72, 1], "swizzle": "none", "l2": "256B", "dtype": "i64", "merged": _merged("rows"),
         "dims": [_dim(72, 2), _dim("rows", 1)]},
        Numbers((72, ROWS), (576,)),
        _gather_boxes((0,), 72, 8), gathers=True,
    ),
    "gather4, first part of a row": Instance(
        "u8", ("pages", PAGE, MIXED_BYTES), lambda: _bytes(MIXED_BYTES),
        {"box": [64, 1], "swizzle": "none", "dtype": "i64", "merged": _merged("rows"),
         "dims": [_dim(64, 2, rest=18), _dim("rows", 1)]},
        Numbers((64, ROWS), (MIXED_BYTES,)),
        _gather_boxes((0,), 64, 8), gathers=True,
    ),
    "rope gather4": Instance(
        "u8", ("pages", PAGE, MIXED_BYTES), lambda: _bytes(MIXED_BYTES),
        {"box": [32, 1], "swizzle": "64B", "dtype": "bf16", "merged": _merged("rows"),
         "dims": [_dim(LINE, 2, first=ROPE_AT // 2), _dim("rows", 1)]},
        Numbers((LINE, ROWS), (MIXED_BYTES,), ROPE_AT),
        _gather_boxes((0, 32), 32, 2, ROPE_AT), gathers=True,
    ),
    "pages": Instance(
        "f16", (*_POOL_SHAPE, LINE), lambda: _pool(LINE),
        {"box": [LINE, PAGE, 1, 1], "swizzle": "128B",
         "dims": [_dim(LINE, 3), _dim(PAGE, 1), _dim(HEADS, 2), _dim("pages", 0)]},
        Numbers((LINE, PAGE, HEADS, PAGES), (HEADS * 128, 128, PITCH * HEADS * 128)),
        _page_boxes,
    ),
    "pages, heads first": Instance(
        "f16", (*_POOL_SHAPE, LINE),
        lambda: _numbers(PAGES, 2, HEADS, PAGE, LINE)[:, 0].swapaxes(1, 2),
        {"box": [LINE, PAGE, 1, 1], "swizzle": "128B",
         "dims": [_dim(LINE, 3), _dim(PAGE, 1), _dim(HEADS, 2), _dim("pages", 0)]},
        Numbers((LINE, PAGE, HEADS, PAGES), (128, PAGE * 128, PITCH * HEADS * 128)),
        _page_boxes,
    ),
}  # fmt: skip
