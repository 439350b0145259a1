"""A kernel that copies pages of a pool, for the emulator and for a GPU: some numbers name no page."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from attn_mlir.validation.ws.kernels import copy_op, kernel, role

BF16 = ml_dtypes.bfloat16
PAGES, PAGE, HEADS, COLUMNS = 5, 64, 2, 128
TABLE = ((4, 0), (0, -1), (-1, -1), (5, 2), (5, 5), (3, 5), (1, 1))  # 5 and -1 lie outside
USED = (128, 64, 128, 100, 77, 1, 65)  # rows of each tile that end the copies of the second kind
HEAD = 1

POOL = f"memref<?x{PAGE}x{HEADS}x{COLUMNS}xbf16>"
TILES = f"memref<?x{2 * PAGE}x{COLUMNS}xbf16>"


def _each_tile(body: str) -> str:
    """What a role does with the tile `%t` of two pages."""
    return f"""%tiles = "ws.extent"(%table) {{dim = 0 : i64}} : (memref<?x2xi32>) -> i32
    "ws.tiles"(%tiles) ({{
    ^bb0(%t: i32):
      {body}
    }}) {{order = "single", operandSegmentSizes = array<i32: 1, 0, 0>}} : (i32) -> ()"""


def _copies(ending: bool) -> str:
    """Both pages of a tile; `ending` ones stop where the rows that are used do.

    Of a page that is not there nothing lies inside the pool: a limited map, whose base may have no
    memory, does not take that, so that it goes through the pool's own.
    """
    parts: list[str] = []
    for number in (0, 1):
        at = f"{'e' if ending else 'w'}{number}"
        text = f"""%i{at} = arith.constant {number} : i32
      %r{at} = arith.constant {PAGE * number} : i32
      %p{at} = "ws.element"(%table, %t, %i{at}) {{operandSegmentSizes = array<i32: 1, 2>}}
        : (memref<?x2xi32>, i32, i32) -> i32
      %part{at} = "ws.rows"(%slot{int(ending)}, %r{at}) : (!t, i32) -> !part"""
        coords = f"%p{at}, %c0, %c{HEAD}, %c0"
        kinds = f"{POOL}, !part"
        copy = copy_op("copy_in", "%pool", f"%part{at}", coords, "1, 3", kinds)
        if ending:
            text += f"""
      %left{at} = arith.subi %used_rows, %r{at} : i32
      %low{at} = arith.maxsi %left{at}, %c1 : i32
      %end{at} = arith.minsi %low{at}, %c64 : i32
      %there{at} = arith.cmpi ult, %p{at}, %pages : i32"""
            copy = f"""scf.if %there{at} {{
        %l{at} = "ws.limit"(%pool, %end{at}) {{dim = 1 : i64}} : ({POOL}, i32) -> {POOL}
        {copy_op("copy_in", f"%l{at}", f"%part{at}", coords, "1, 3", kinds)}
      }} else {{
        {copy}
      }}"""
        parts.append(f"{text}\n      {copy}")
    return "\n      ".join(parts)


def copy_pages() -> str:
    """`k(pool, table, used, whole, ending)`: pages of pool [pages, 64, 2, 128], head 1, by the copy engine.

    Tile t of 128 rows is made of the pages table[t, 0] and table[t, 1]; it goes to whole[t], and with
    zeros from row used[t] on, of each page at least one row left, to ending[t].
    """
    load = f"""%used_rows = "ws.element"(%used, %t) {{operandSegmentSizes = array<i32: 1, 1>}}
        : (memref<?xi32>, i32) -> i32
      %pages = "ws.extent"(%pool) {{dim = 0 : i64}} : ({POOL}) -> i32
      %slot0 = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
      {_copies(ending=False)}
      "ws.commit"(%slot0) {{by = "copy_engine"}} : (!t) -> ()
      %slot1 = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
      {_copies(ending=True)}
      "ws.commit"(%slot1) {{by = "copy_engine"}} : (!t) -> ()"""
    store = "\n      ".join(
        f"""%slot{number} = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
      {copy_op("copy_out", f"%slot{number}", f"%{name}", "%t, %c0, %c0", "1, 2", f"!t, {TILES}")}
      "ws.release"(%slot{number}) {{by = "copy_engine"}} : (!t) -> ()"""
        for number, name in enumerate(("whole", "ending"))
    )
    return kernel(
        [
            ("pool", "in", POOL, ("pages", "", "", "")),
            ("table", "in", "memref<?x2xi32>", ("tiles", "")),
            ("used", "in", "memref<?xi32>", ("tiles",)),
            ("whole", "out", TILES, ("tiles", "", "")),
            ("ending", "out", TILES, ("tiles", "", "")),
        ],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
        + role("load", _each_tile(load), first=0)
        + role("store", _each_tile(store), first=1),
        types=f"""!t = !ws.tile<vector<{2 * PAGE}x{COLUMNS}xbf16>, "shared">
!part = !ws.tile<vector<{PAGE}x{COLUMNS}xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
""",
    )


def pages(*, heads_first: bool = False) -> dict[str, Any]:
    """Arguments of a call, NaN where results go; the pool [pages, 2, 64, 128] in memory if heads are first."""
    inner = (HEADS, PAGE) if heads_first else (PAGE, HEADS)
    pool = np.random.default_rng(0).standard_normal((PAGES, *inner, COLUMNS)).astype(BF16)
    results = (np.full((len(TABLE), 2 * PAGE, COLUMNS), np.nan, BF16) for _ in range(2))
    return {
        "pool": pool.swapaxes(1, 2) if heads_first else pool,
        "table": np.array(TABLE, np.int32),
        "used": np.array(USED, np.int32),
        **dict(zip(("whole", "ending"), results, strict=True)),
    }


def check_pages(pool: Any, table: Any, used: Any, whole: Any, ending: Any) -> None:
    """Every page arrived; numbers outside the pool gave zeros, and so did rows that are not used."""
    for t, numbers in enumerate(table):
        for place, page in enumerate(numbers):
            rows = np.s_[place * PAGE : (place + 1) * PAGE]
            wanted = np.zeros((PAGE, COLUMNS), BF16)
            if 0 <= page < PAGES:
                wanted = pool[page, :, HEAD].copy()
            assert (whole[t, rows] == wanted).all(), f"tile {t}, page {place}"
            wanted[max(used[t] - place * PAGE, 1) :] = 0
            assert (ending[t, rows] == wanted).all(), f"tile {t}, page {place}, ending"
