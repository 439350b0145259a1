"""Products of 64 rows in each CTA of a pair, of rows that either CTA gathers where its own branch says."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.ws.checks import copy, refused
from attn_mlir.validation.ws.clusters import built, compiled
from attn_mlir.validation.ws.pair_gathers import ROWS, gathered_product

BF16 = ml_dtypes.bfloat16
DEPTH, COLUMNS = 128, 32


@pytest.mark.parametrize(
    ("layout", "count", "space"),
    [("nk", COLUMNS, "shared"), ("kn", 512, "shared"), ("nk", COLUMNS, "tensor")],
)
def test_both_halves_are_gathered_once(layout: str, count: int, space: str) -> None:
    """Three blocks, of which the second has no product; 512 columns take two instructions."""
    random = np.random.default_rng(3)
    a = random.integers(-3, 4, (2 * ROWS, DEPTH)).astype(np.float32)
    listed, columns = (count, DEPTH) if layout == "nk" else (DEPTH, count)
    x = random.integers(-3, 4, (200, columns)).astype(np.float32)
    entries = random.integers(-5, 205, 3 * listed).astype(np.int32)
    entries[::listed] = 7, -1, 0
    exists = (entries >= 0) & (entries < len(x))
    rows = np.where(exists[:, None], x[entries.clip(0, 199)], 0).reshape(3, listed, columns)
    blocks = [block.T if layout == "nk" else block for block in rows]
    kernel = compiled(lambda: gathered_product(count, DEPTH, layout, a_space=space), "sm_100a")
    for schedule in ("fair", "adversarial"):
        found = np.full((2, 2 * ROWS, count // 2), np.nan, np.float32)
        machine = EmulatorDevice(schedule, seed=1, check="all")
        kernel(a.astype(BF16), x.astype(BF16), entries, found, device=machine)
        halves = found.reshape(2, 2, ROWS, count // 2).transpose(0, 2, 1, 3)
        assert np.array_equal(halves.reshape(2 * ROWS, count), a @ (blocks[0] + blocks[2]))


def test_either_half_of_a_has_its_columns_of_the_same_rows() -> None:
    """Each row is gathered once, half by either CTA; the halves of the sums together are the product."""
    random = np.random.default_rng(4)
    a = random.integers(-3, 4, (2 * ROWS, 2 * DEPTH)).astype(np.float32)
    x = random.integers(-3, 4, (90, 2 * DEPTH)).astype(np.float32)
    entries = random.integers(0, 90, COLUMNS).astype(np.int32)
    kernel = compiled(
        lambda: gathered_product(2 * COLUMNS, DEPTH, "nk", a_space="halves"), "sm_100a"
    )
    found = np.full((2, 2, ROWS, COLUMNS), np.nan, np.float32)
    machine = EmulatorDevice("adversarial", seed=1, check="all")
    shaped = found.reshape(2, 2 * ROWS, COLUMNS)
    kernel(a.astype(BF16), x.astype(BF16), entries, shaped, device=machine)
    for half in range(2):
        own = slice(half * DEPTH, (half + 1) * DEPTH)
        assert np.array_equal(
            found[:, half].reshape(2 * ROWS, -1), a[:, own] @ x[entries][:, own].T
        )


def test_every_copy_announces_its_bytes_where_they_count() -> None:
    """Two arrivals at the leader, each after bytes that its copies have announced, and none elsewhere."""
    ptx = compiled(lambda: gathered_product(COLUMNS, DEPTH, "nk"), "sm_100a").bundle.ptx
    assert "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64" in ptx
    assert "tile::gather4.mbarrier::complete_tx::bytes.cta_group::2" in ptx


@pytest.mark.parametrize(("layout", "count"), [("nk", COLUMNS), ("kn", 512)])
def test_columns_are_constants(layout: str, count: int) -> None:
    """Where the rank decides over them, in a branch for each CTA."""
    ptx = compiled(lambda: gathered_product(count, DEPTH, layout), "sm_100a").bundle.ptx
    copies = re.findall(r"tile::gather4\S+ \[\S+\], \[%rd\d+, \{(%r\d+),", ptx)
    constants = {name for name in copies if re.search(rf"mov\.b32 \s*{name}, \d+;", ptx)}
    assert copies and set(copies) == constants
    assert ["// CTA 0" in ptx, "// CTA 1" in ptx] == [layout == "kn"] * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"128x16xf32": "64x32xf32"}, "expects M of 128 in each CTA of a pair, got 64"),
        (
            {"128x16xf32": "64x16xf32", "128x64xbf16": "64x64xbf16", "<64x128xbf": "<32x128xbf"},
            "expects accumulators of 128 rows, two for each of a, got 64",
        ),
    ],
)
def test_products_without_code(changes: dict[str, str], message: str) -> None:
    text = str(built(lambda: gathered_product(COLUMNS, DEPTH, "nk")))
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    refused(text, message)


def test_a_in_tensor_memory_has_products_of_32_columns() -> None:
    text = str(built(lambda: gathered_product(16, DEPTH, "nk", a_space="tensor")))
    refused(text, "expects N a multiple of 32 to 512, got 16")


@pytest.mark.parametrize(
    ("tile", "part", "view", "message"),
    [
        ("4x128", "4x128", "8x64", "expects a multiple of 8 rows to put others below, got 4"),
        ("16x128", "8x128", "16x64", "expects all rows of a shared tile, got 8 of 16"),
    ],
)
def test_views_without_code(tile: str, part: str, view: str, message: str) -> None:
    whole, piece, seen = (f'!ws.tile<vector<{x}xbf16>, "shared">' for x in (tile, part, view))
    rows = f"""%p = "ws.rows"(%s, %c0) : (!t, i32) -> {piece}
    %v = "ws.view"(%p) : ({piece}) -> {seen}
    """
    text = copy(whole, "memref<?x64xbf16>", target="%v", before=rows, kind=seen)
    refused(text, f"'ws.view' op {message}")


def test_a_view_begins_with_a_line_of_columns() -> None:
    """Whose bytes may be elements of another type; any column is told as one of the part's own elements."""
    whole, piece = (f'!ws.tile<vector<16x{x}xf8E4M3FN>, "shared">' for x in (256, 64))
    seen = '!ws.tile<vector<16x32xbf16>, "shared">'
    text = f"""%p = "ws.columns"(%s) {{first = 64 : i64}} : (!t) -> {piece}
    %v = "ws.view"(%p) : ({piece}) -> {seen}
    """
    text = copy(whole, "memref<?x64xbf16>", target="%v", before=text, kind=seen)
    refused(
        text,
        "'ws.view' op expects a shared tile from a multiple of 128 columns on, got one from 64",
    )
