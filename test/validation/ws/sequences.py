"""A kernel that copies sequences of unequal lengths, for the emulator and for a GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from attn_mlir.validation.ws.kernels import copy_op, kernel, role

BF16 = ml_dtypes.bfloat16
TILE_ROWS = 64
LENGTHS = (1, 0, 64, 77, 2, 0, 128, 63, 65)  # of the sequences; the first begins at the first row

X, TILES = "memref<?x128xbf16>", "memref<?x?x64x128xbf16>"


def _each_tile(body: str) -> str:
    """What a role does with each tile of 64 rows; `%first` and `%end` are rows of the tensor."""
    return f"""%rows = arith.constant {TILE_ROWS} : i32
    %count = "ws.extent"(%ends) {{dim = 0 : i64}} : (memref<?xi32>) -> i32
    %batch = arith.subi %count, %c1 : i32
    %blocks = arith.ceildivsi %most, %rows : i32
    "ws.tiles"(%blocks, %batch) ({{
    ^bb0(%block: i32, %b: i32):
      %next = arith.addi %b, %c1 : i32
      %begin = "ws.element"(%ends, %b) {{operandSegmentSizes = array<i32: 1, 1>}}
        : (memref<?xi32>, i32) -> i32
      %end = "ws.element"(%ends, %next) {{operandSegmentSizes = array<i32: 1, 1>}}
        : (memref<?xi32>, i32) -> i32
      %passed = arith.muli %block, %rows : i32
      %first = arith.addi %begin, %passed : i32
      %some = arith.cmpi slt, %first, %end : i32
      scf.if %some {{
        {body}
      }}
    }}) {{order = "single", operandSegmentSizes = array<i32: 2, 0, 0>}} : (i32, i32) -> ()"""


def copy_sequences() -> str:
    """`k(x, ends, y, tiles, most=)`: x [total, 128] through tiles of 64 rows, by the copy engine.

    Each sequence's rows go to the same rows of y, and its tiles as they were loaded to
    tiles [batch, blocks, 64, 128].
    """
    load = f"""%slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
        %part = "ws.limit"(%x, %end) {{dim = 0 : i64}} : ({X}, i32) -> {X}
        {copy_op("copy_in", "%part", "%slot", "%first, %c0", "0, 1", f"{X}, !t")}
        "ws.commit"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""
    store = f"""%slot = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
        %part = "ws.limit"(%y, %end) {{dim = 0 : i64}} : ({X}, i32) -> {X}
        {copy_op("copy_out", "%slot", "%part", "%first, %c0", "0, 1", f"!t, {X}")}
        {copy_op("copy_out", "%slot", "%tiles", "%b, %block, %c0, %c0", "2, 3", f"!t, {TILES}")}
        "ws.release"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""
    return kernel(
        [
            ("x", "in", X, ("total", "")),
            ("ends", "in", "memref<?xi32>", ("ends",)),
            ("y", "out", X, ("total", "")),
            ("tiles", "out", TILES, ("batch", "blocks", "", "")),
            ("most", "scalar", "i32", ()),
        ],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
        + role("load", _each_tile(load), first=0)
        + role("store", _each_tile(store), first=1),
        types='!t = !ws.tile<vector<64x128xbf16>, "shared">\n!ring = !ws.ring<!t, 2, 1>\n',
    )


def sequences() -> dict[str, Any]:
    """Arguments of a call: NaN lies behind the last sequence, and where results go."""
    ends = np.cumsum([0, *LENGTHS]).astype(np.int32)
    x = np.full((ends[-1] + 70, 128), np.nan, BF16)
    x[: ends[-1]] = np.random.default_rng(0).standard_normal((ends[-1], 128)).astype(BF16)
    blocks = -(-max(LENGTHS) // TILE_ROWS)
    y = np.full_like(x, 7.0)
    return {
        "x": x,
        "ends": ends,
        "y": y,
        "tiles": np.full((len(LENGTHS), blocks, 64, 128), 7, BF16),
    }


def check_sequences(x: Any, ends: Any, y: Any, tiles: Any) -> None:
    """Every row of a sequence arrived, zeros fill its last tile, nothing else was written."""
    assert (y[: ends[-1]] == x[: ends[-1]]).all()
    assert (y[ends[-1] :] == 7.0).all()
    for b, length in enumerate(LENGTHS):
        wanted = np.full(tiles[b].shape, 7.0, BF16).reshape(-1, 128)
        used = -(-length // TILE_ROWS) * TILE_ROWS
        wanted[:used] = 0.0
        wanted[:length] = x[ends[b] : ends[b + 1]]
        assert (tiles[b].reshape(-1, 128) == wanted).all(), f"sequence {b}"
