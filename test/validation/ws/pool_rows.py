"""Kernels that copy rows of a pool whose pages are walked as one matrix, for the emulator and for a GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from attn_mlir.validation.ws.kernels import copy_op, kernel, role

BF16 = ml_dtypes.bfloat16
PAGES, PAGE, HEADS, COLUMNS = 4, 16, 2, 128
TABLE = (3, 0, 2, 0, 4, -1)  # pages; the last two are none
HEAD, TILE = 1, 8

_POOL = f"memref<?x{PAGE}x{HEADS}x{COLUMNS}xbf16>"
_ROWS = f"memref<?x{HEADS}x{COLUMNS}xbf16>"
_LATENT = f"memref<?x{PAGE}x{COLUMNS}xbf16>"
_LATENT_ROWS = f"memref<?x{COLUMNS}xbf16>"


def _each(count: str, body: str) -> str:
    return f"""%n = "ws.extent"({count}) {{dim = 0 : i64}} : (memref<?xi32>) -> i32
    scf.for %i = %c0 to %n step %step : i32 {{
      {body}
    }}"""


def _leave(tile: str, steps: int) -> str:
    """A role that stores each tile to y, `steps` entries of the table further each time."""
    return role(
        "leave",
        f"%step = arith.constant {steps} : i32\n    "
        + _each(
            "%table",
            f"""%slot = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
      {copy_op("copy_out", "%slot", "%y", "%i, %c0, %c0", "1, 2", f"!t, {tile}")}
      "ws.release"(%slot) {{by = "copy_engine"}} : (!t) -> ()""",
        ),
        first=1,
    )


def copy_pages() -> str:
    """`k(pool, table, y)`: y[i] = pool[table[i], :, 1] by copies at rows of the whole pool."""
    load = f"""%step = arith.constant 1 : i32
    %rows = "ws.collapse"(%pool) {{dim = 0 : i64}} : ({_POOL}) -> {_ROWS}
    %pitch = "ws.pitch"(%pool) {{dim = 0 : i64}} : ({_POOL}) -> i32
    """ + _each(
        "%table",
        f"""%page = "ws.element"(%table, %i) {{operandSegmentSizes = array<i32: 1, 1>}}
        : (memref<?xi32>, i32) -> i32
      %row = arith.muli %page, %pitch : i32
      %slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
      {copy_op("copy_in", "%rows", "%slot", f"%row, %c{HEAD}, %c0", "0, 2", f"{_ROWS}, !t")}
      "ws.commit"(%slot) {{by = "copy_engine"}} : (!t) -> ()""",
    )
    tile = f"memref<?x{PAGE}x{COLUMNS}xbf16>"
    return kernel(
        [
            ("pool", "in", _POOL, ("pages", "", "", "")),
            ("table", "in", "memref<?xi32>", ("entries",)),
            ("y", "out", tile, ("entries", "", "")),
        ],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
        + role("load", load, first=0)
        + _leave(tile, 1),
        types=f"""!t = !ws.tile<vector<{PAGE}x{COLUMNS}xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
""",
    )


def gather_tokens() -> str:
    """`k(pool, table, y)`: y[i] = the token of pool [pages, 16, 128] that table[i] = 16 page + token names.

    Eight entries make a tile; y is [entries, 1, 128].
    """
    load = f"""%step = arith.constant {TILE} : i32
    %size = arith.constant {PAGE} : i32
    %rows = "ws.collapse"(%pool) {{dim = 0 : i64}} : ({_LATENT}) -> {_LATENT_ROWS}
    %pitch = "ws.pitch"(%pool) {{dim = 0 : i64}} : ({_LATENT}) -> i32
    """ + _each(
        "%table",
        f"""%slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
      "ws.gather_in"(%rows, %slot, %c0, %c0) ({{
      ^bb0(%row: i32):
        %at = arith.addi %i, %row : i32
        %entry = "ws.element"(%table, %at) {{operandSegmentSizes = array<i32: 1, 1>}}
          : (memref<?xi32>, i32) -> i32
        %page = arith.floordivsi %entry, %size : i32
        %past = arith.muli %page, %size : i32
        %token = arith.subi %entry, %past : i32
        %begin = arith.muli %page, %pitch : i32
        %from = arith.addi %begin, %token : i32
        "ws.yield"(%from) : (i32) -> ()
      }}) {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}}
        : ({_LATENT_ROWS}, !t, i32, i32) -> ()
      "ws.commit"(%slot) {{by = "copy_engine"}} : (!t) -> ()""",
    )
    tile = f"memref<?x1x{COLUMNS}xbf16>"
    leave = _leave(tile, TILE).replace("dims = array<i32: 1, 2>", "dims = array<i32: 0, 2>")
    return kernel(
        [
            ("pool", "in", _LATENT, ("pages", "", "")),
            ("table", "in", "memref<?xi32>", ("entries",)),
            ("y", "out", tile, ("entries", "", "")),
        ],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
        + role("load", load, first=0)
        + leave,
        types=f"""!t = !ws.tile<vector<{TILE}x{COLUMNS}xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
""",
    )


def pool(*, heads_first: bool = False, between: int = 2) -> Any:
    """K of a pool [pages, 16, 2, 128] whose pages have `between` parts of one size, such as K and V."""
    inner = (HEADS, PAGE) if heads_first else (PAGE, HEADS)
    numbers = np.random.default_rng(0).standard_normal((PAGES, between, *inner, COLUMNS))
    keys = numbers.astype(BF16)[:, 0]
    return keys.swapaxes(1, 2) if heads_first else keys


def page_call(**kind: Any) -> tuple[Any, Any, Any]:
    """Arguments of `copy_pages`, NaN where results go."""
    y = np.full((len(TABLE), PAGE, COLUMNS), np.nan, BF16)
    return pool(**kind), np.array(TABLE, np.int32), y


def check_pages(keys: Any, table: Any, y: Any) -> None:
    """Every page arrived, and zeros for what is none."""
    for number, found in zip(table, y, strict=True):
        wanted = keys[number, :, HEAD] if 0 <= number < PAGES else np.zeros_like(found)
        assert (found == wanted).all(), f"page {number}"


def token_call(**kind: Any) -> tuple[Any, Any, Any]:
    """Arguments of `gather_tokens`, NaN where results go; some entries are below 0 or beyond the pool."""
    entries = np.random.default_rng(1).integers(-3, PAGES * PAGE, 3 * TILE).astype(np.int32)
    entries[-1] = PAGES * PAGE
    y = np.full((len(entries), 1, COLUMNS), np.nan, BF16)
    return pool(**kind)[:, :, 0], entries, y


def check_tokens(keys: Any, table: Any, y: Any) -> None:
    """Every token arrived, and zeros for what is none."""
    for entry, found in zip(table, y, strict=True):
        exists = 0 <= entry < PAGES * PAGE
        wanted = keys[entry // PAGE, entry % PAGE] if exists else np.zeros(COLUMNS, BF16)
        assert (found == wanted).all(), f"entry {entry}"
