"""`ws.collapse` and `ws.pitch`: copies at rows of a whole pool, executed, described and refused."""

from __future__ import annotations

import numpy as np
import pytest

from attn_mlir.errors import SpecError
from attn_mlir.validation.ws import pool_rows
from attn_mlir.validation.ws.checks import check, manifest, refused
from attn_mlir.validation.ws.kernels import run


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(("heads_first", "between"), [(False, 2), (True, 1)])
def test_pages_by_their_rows(seed: int | None, heads_first: bool, between: int) -> None:
    call = pool_rows.page_call(heads_first=heads_first, between=between)
    run(pool_rows.copy_pages(), *call, seed=seed)
    pool_rows.check_pages(*call)


@pytest.mark.parametrize("seed", [None, 1])
def test_tokens_by_their_rows(seed: int | None) -> None:
    call = pool_rows.token_call()
    run(pool_rows.gather_tokens(), *call, seed=seed)
    pool_rows.check_tokens(*call)


def test_the_recipe_of_rows() -> None:
    load, *others = manifest(pool_rows.copy_pages())["params"]
    assert load["merged"] == {"outer": 0, "inner": 1, "extent": "pool.rows"}
    assert load["dims"] == [
        {"extent": 64, "axis": 3, "step": 1},
        {"extent": "pool.rows", "axis": 1, "step": 1},
        {"extent": 2, "axis": 3, "step": 64},
        {"extent": 2, "axis": 2, "step": 1},
    ]
    strides = [param for param in others if param["kind"] == "stride"]
    assert [(stride["tensor"], stride["axis"]) for stride in strides] == [("pool", 0), ("pool", 1)]


def test_pages_that_are_no_whole_number_of_rows_apart() -> None:
    keys, table, y = pool_rows.page_call()
    apart = np.zeros((len(keys), keys[0].size + 8), keys.dtype)
    shifted = np.lib.stride_tricks.as_strided(
        apart, keys.shape, (apart.strides[0], *keys.strides[1:])
    )
    with pytest.raises(SpecError, match="^pool has strides of 8208 and 512 bytes along the axes 0"):
        run(pool_rows.copy_pages(), shifted, table, y)


def test_what_has_no_code() -> None:
    text, pool, rows = (pool_rows.copy_pages(), "memref<?x16x2x128xbf16>", "memref<?x2x128xbf16>")
    check(text)
    size = f'%m = "ws.extent"(%rows) {{dim = 0 : i64}} : ({rows}) -> i32\n      "ws.commit"'
    used = text.replace('"ws.commit"', size, 1)
    refused(used, "'ws.collapse' op expects uses by copies of the copy engine, got ws.extent")
    view = f'%part = "ws.limit"(%pool, %c1) {{dim = 1 : i64}} : ({pool}, i32) -> {pool}\n    '
    for name in ("collapse", "pitch"):
        first, call, rest = text.partition(f'"ws.{name}"(%pool)')
        line = first.rindex("\n") + 1
        limited = first[:line] + view + first[line:] + call.replace("%pool", "%part") + rest
        refused(limited, f"'ws.{name}' op expects a tensor argument, got a view of one")
    columns = '%c = "ws.collapse"(%pool) {dim = 2 : i64} : (memref<?x16x2x128xbf16>) -> memref<?x16x?xbf16>'
    behind = text.replace("%rows = ", f"{columns}\n    %rows = ", 1)
    refused(behind, "'ws.collapse' op expects columns behind the dimensions that are walked as one")
