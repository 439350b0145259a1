"""Tiles handed from role to role, executed: copy engine, tensor core and threads on both ends."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.validation.ws.kernels import (
    ROWS,
    copy_op,
    kernel,
    normal,
    poison,
    product,
    role,
    run,
    threads,
)

BF16 = ml_dtypes.bfloat16
DTYPES = {"bf16": BF16, "f16": np.float16}
SEEDS = [None, 1, 2]


@pytest.mark.parametrize(
    ("element", "k", "n", "layout"),
    [
        ("bf16", 64, 128, "nk"),
        ("f16", 128, 64, "nk"),
        ("bf16", 128, 128, "kn"),
        ("f16", 64, 64, "kn"),
        ("bf16", 192, 256, "nk"),
        ("bf16", 16, 8, "nk"),
        ("bf16", 48, 192, "kn"),
    ],
)
def test_product_of_two_shared_tiles(element: str, k: int, n: int, layout: str) -> None:
    dtype = DTYPES[element]
    a, b = normal(ROWS, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1)
    y = poison(ROWS, n)
    given = np.ascontiguousarray(b.T) if layout == "nk" else b
    run(product(element, k, n, layout), a, given, y)
    assert (y == a.astype(np.float32) @ b.astype(np.float32)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_products_accumulate(seed: int | None) -> None:
    a, b = normal(ROWS, 64, dtype=BF16), normal(64, 64, dtype=BF16, seed=1)
    y = poison(ROWS, 64)
    run(product("bf16", 64, 64, "nk", rounds=3), a, np.ascontiguousarray(b.T), y, seed=seed)
    assert (y == 3 * (a.astype(np.float32) @ b.astype(np.float32))).all()


def test_what_the_copy_engine_does_not_find_is_zero() -> None:
    a, b = normal(70, 64, dtype=BF16), normal(64, 64, dtype=BF16, seed=1)
    y = poison(ROWS, 64)
    run(product("bf16", 64, 64, "kn"), a, b, y)
    assert (y[:70] == a.astype(np.float32) @ b.astype(np.float32)).all() and (y[70:] == 0).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_product_with_a_from_tensor_memory(seed: int | None) -> None:
    """Threads write A as 16-bit columns over part of a tile, as softmax writes its weights."""
    fill = threads(
        """%zero = arith.constant 0.0 : f32
    %blank = "ws.fill"(%zero) : (f32) -> !full
    %f = "ws.map"(%blank) ({
    ^bb0(%e: f32, %i: i32, %j: i32):
      %v = "ws.element"(%a, %i, %j) {operandSegmentSizes = array<i32: 1, 2>} : (memref<?x?xf32>, i32, i32) -> f32
      %h = arith.truncf %v : f32 to bf16
      "ws.yield"(%h) : (bf16) -> ()
    }) {operandSegmentSizes = array<i32: 1>} : (!full) -> !half
    %s = "ws.acquire"(%ps, %c0) : (!ps, i32) -> !s
    %p = "ws.view"(%s) : (!s) -> !p
    "ws.store"(%f, %p) : (!half, !p) -> ()
    "ws.commit"(%s) {by = "threads"} : (!s) -> ()
    %d = "ws.wait"(%accs, %c0) : (!accs, i32) -> !s
    %r = "ws.load"(%d) : (!s) -> !full
    "ws.release"(%d) {by = "threads"} : (!s) -> ()
    "ws.store_global"(%r, %y, %c0, %c0)
      {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
      : (!full, memref<?x?xf32>, i32, i32) -> ()"""
    )
    load = role(
        "load",
        f"""%sb = "ws.acquire"(%bs, %c0) : (!bs, i32) -> !b
    {copy_op("copy_in", "%b", "%sb", "%c0, %c0", "0, 1", "memref<?x64xbf16>, !b")}
    "ws.commit"(%sb) {{by = "copy_engine"}} : (!b) -> ()""",
        first=4,
    )
    mma = role(
        "mma",
        """%sb = "ws.wait"(%bs, %c0) : (!bs, i32) -> !b
    %s = "ws.wait"(%ps, %c0) : (!ps, i32) -> !s
    %p = "ws.view"(%s) : (!s) -> !p
    %d = "ws.acquire"(%accs, %c0) : (!accs, i32) -> !s
    "ws.mma"(%d, %p, %sb, %no) {b_layout = "kn"} : (!s, !p, !b, i1) -> ()
    "ws.release"(%sb) {by = "tensor_core"} : (!b) -> ()
    "ws.release"(%s) {by = "tensor_core"} : (!s) -> ()
    "ws.commit"(%d) {by = "tensor_core"} : (!s) -> ()""",
        first=5,
    )
    text = kernel(
        [
            ("a", "in", "memref<?x?xf32>", ("m", "k")),
            ("b", "in", "memref<?x64xbf16>", ("kb", "")),
            ("y", "out", "memref<?x?xf32>", ("my", "n")),
        ],
        """  %ps = "ws.alloc_ring"() {label_name = "p"} : () -> !ps
  %bs = "ws.alloc_ring"() {label_name = "b"} : () -> !bs
  %accs = "ws.alloc_ring"() {label_name = "acc"} : () -> !accs"""
        + fill
        + load
        + mma,
        types="""!s = !ws.tile<vector<128x64xf32>, "tensor">
!p = !ws.tile<vector<128x64xbf16>, "tensor">
!b = !ws.tile<vector<64x64xbf16>, "shared">
!half = !ws.frag<vector<128x64xbf16>>
!ps = !ws.ring<!s, 1, 1>
!bs = !ws.ring<!b, 1, 1>
!accs = !ws.ring<!s, 1, 1>
""",
    )
    a, b = normal(ROWS, 64, dtype=np.float32), normal(64, 64, dtype=BF16, seed=1)
    y = poison(ROWS, 64)
    run(text, a, b, y, seed=seed)
    assert (y == a @ b.astype(np.float32)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_threads_fill_what_the_copy_engine_stores(seed: int | None) -> None:
    """Two column parts of a shared tile, written by threads, leave as one box; twice per slot."""
    rows = threads(
        """%three = arith.constant 3 : i32
    %tile = arith.constant 128 : i32
    %zero = arith.constant 0.0 : f32
    %blank = "ws.fill"(%zero) : (f32) -> !full
    scf.for %t = %c0 to %three step %c1 : i32 {
      %slot = "ws.acquire"(%outs, %c0) : (!outs, i32) -> !out
      %first = arith.muli %t, %tile : i32
      %left = "ws.columns"(%slot) {first = 0 : i64} : (!out) -> !part
      %right = "ws.columns"(%slot) {first = 64 : i64} : (!out) -> !part
      %f = "ws.map"(%blank) ({
      ^bb0(%e: f32, %i: i32, %j: i32):
        %row = arith.addi %first, %i : i32
        %v = "ws.element"(%x, %row, %j) {operandSegmentSizes = array<i32: 1, 2>} : (memref<?x?xf32>, i32, i32) -> f32
        %h = arith.truncf %v : f32 to f16
        "ws.yield"(%h) : (f16) -> ()
      }) {operandSegmentSizes = array<i32: 1>} : (!full) -> !half
      "ws.store"(%f, %left) : (!half, !part) -> ()
      %g2 = "ws.map"(%f) ({
      ^bb0(%e: f16, %i: i32, %j: i32):
        %v = arith.negf %e : f16
        "ws.yield"(%v) : (f16) -> ()
      }) {operandSegmentSizes = array<i32: 1>} : (!half) -> !half
      "ws.store"(%g2, %right) : (!half, !part) -> ()
      "ws.commit"(%slot) {by = "threads"} : (!out) -> ()
    }"""
    )
    leave = role(
        "leave",
        f"""%three = arith.constant 3 : i32
    %tile = arith.constant 128 : i32
    scf.for %t = %c0 to %three step %c1 : i32 {{
      %slot = "ws.wait"(%outs, %c0) : (!outs, i32) -> !out
      %first = arith.muli %t, %tile : i32
      {copy_op("copy_out", "%slot", "%y", "%first, %c0", "0, 1", "!out, memref<?x128xf16>")}
      "ws.release"(%slot) {{by = "copy_engine"}} : (!out) -> ()
    }}""",
        first=4,
    )
    text = kernel(
        [
            ("x", "in", "memref<?x?xf32>", ("m", "n")),
            ("y", "out", "memref<?x128xf16>", ("my", "")),
        ],
        '  %outs = "ws.alloc_ring"() {label_name = "out"} : () -> !outs' + rows + leave,
        types="""!out = !ws.tile<vector<128x128xf16>, "shared">
!part = !ws.tile<vector<128x64xf16>, "shared">
!half = !ws.frag<vector<128x64xf16>>
!outs = !ws.ring<!out, 2, 1>
""",
        columns=64,
    )
    x = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)
    y = poison(300, 128, dtype=np.float16)
    run(text, x, y, seed=seed)
    assert (y[:, :64] == x.astype(np.float16)).all() and (y[:, 64:] == -y[:, :64]).all()


@pytest.mark.parametrize("columns", [64, 128])
def test_rows_that_run_through_two_dimensions(columns: int) -> None:
    """A tile of 32 positions x 4 heads of one group, unfolded into plain rows by the copy engine."""
    view = f"memref<?x?x2x4x{columns}xbf16>"
    move = role(
        "load",
        f"""%view = "ws.expand"(%x) {{dim = 2 : i64, factor = 4 : i64}} : (memref<?x?x8x{columns}xbf16>) -> {view}
    %p = arith.constant 5 : i32
    %slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
    {copy_op("copy_in", "%view", "%slot", "%c1, %p, %c1, %c0, %c0", "1, 3, 4", f"{view}, !t")}
    "ws.commit"(%slot) {{by = "copy_engine"}} : (!t) -> ()""",
        first=0,
    )
    leave = role(
        "leave",
        f"""%slot = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
    {copy_op("copy_out", "%slot", "%y", "%c0, %c0", "0, 1", f"!t, memref<?x{columns}xbf16>")}
    "ws.release"(%slot) {{by = "copy_engine"}} : (!t) -> ()""",
        first=1,
    )
    text = kernel(
        [
            ("x", "in", f"memref<?x?x8x{columns}xbf16>", ("b", "s", "", "")),
            ("y", "out", f"memref<?x{columns}xbf16>", ("m", "")),
        ],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring' + move + leave,
        types=f"""!t = !ws.tile<vector<128x{columns}xbf16>, "shared">
!ring = !ws.ring<!t, 1, 1>
""",
    )
    x = np.random.default_rng(0).standard_normal((2, 30, 8, columns)).astype(BF16)
    y = np.full((ROWS, columns), np.nan, BF16)
    run(text, x, y)
    wanted = x[1, 5:, 4:].reshape(-1, columns)  # 25 positions exist, 32 are asked for
    assert (y[:100] == wanted).all() and (y[100:] == 0).all()


def test_element_of_an_expanded_tensor() -> None:
    """[m, 2, 64] read where row r is at (r / 2, r mod 2)."""
    body = """%zero = arith.constant 0.0 : f32
    %blank = "ws.fill"(%zero) : (f32) -> !full
    %view = "ws.expand"(%x) {dim = 0 : i64, factor = 2 : i64} : (memref<128x?xf32>) -> memref<64x2x?xf32>
    %two = arith.constant 2 : i32
    %f = "ws.map"(%blank) ({
    ^bb0(%e: f32, %i: i32, %j: i32):
      %inner = arith.remui %i, %two : i32
      %outer = arith.divui %i, %two : i32
      %v = "ws.element"(%view, %outer, %inner, %j) {operandSegmentSizes = array<i32: 1, 3>} : (memref<64x2x?xf32>, i32, i32, i32) -> f32
      "ws.yield"(%v) : (f32) -> ()
    }) {operandSegmentSizes = array<i32: 1>} : (!full) -> !full
    "ws.store_global"(%f, %y, %c0, %c0)
      {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
      : (!full, memref<?x?xf32>, i32, i32) -> ()"""
    text = kernel(
        [("x", "in", "memref<128x?xf32>", ("", "n")), ("y", "out", "memref<?x?xf32>", ("m", "k"))],
        threads(body),
    )
    x = np.random.default_rng(0).standard_normal((ROWS, 64)).astype(np.float32)
    y = poison(ROWS, 64)
    run(text, x, y)
    assert (y == x).all()


def test_parts_of_a_tensor_memory_tile() -> None:
    """A 16-bit view of columns 16.. covers half as many columns there; a product goes to 64..127."""
    text = product("bf16", 64, 64, "nk")
    text = text.replace("!acc = !ws.tile<vector<128x64xf32>", "!acc = !ws.tile<vector<128x128xf32>")
    text = text.replace(
        '"ws.mma"(%d, %sa, %sb, %more) {b_layout = "nk"} : (!acc,',
        '%part = "ws.columns"(%d) {first = 64 : i64} : (!acc) -> !part\n'
        '"ws.mma"(%part, %sa, %sb, %more) {b_layout = "nk"} : (!part,',
    )
    text = text.replace(
        '%f = "ws.load"(%d) : (!acc) -> !full',
        """%low = "ws.columns"(%d) {first = 16 : i64} : (!acc) -> !low
    %view = "ws.view"(%low) : (!low) -> !halves
    %z = arith.constant 2.0 : bf16
    %twos = "ws.fill"(%z) : (bf16) -> !ws.frag<vector<128x32xbf16>>
    "ws.store"(%twos, %view) : (!ws.frag<vector<128x32xbf16>>, !halves) -> ()
    %kept = "ws.columns"(%low) {first = 0 : i64} : (!low) -> !kept
    %k = "ws.load"(%kept) : (!kept) -> !pairs
    %high = "ws.columns"(%d) {first = 64 : i64} : (!acc) -> !part
    %f = "ws.load"(%high) : (!part) -> !full
    %c80 = arith.constant 80 : i32
    "ws.store_global"(%k, %y, %c0, %c80)
      {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
      : (!pairs, memref<?x?xf32>, i32, i32) -> ()""",
    )
    text = text.replace(
        "!as = ",
        """!part = !ws.tile<vector<128x64xf32>, "tensor">
!low = !ws.tile<vector<128x32xf32>, "tensor">
!halves = !ws.tile<vector<128x32xbf16>, "tensor">
!kept = !ws.tile<vector<128x16xf32>, "tensor">
!pairs = !ws.frag<vector<128x16xf32>>
!as = """,
        1,
    )
    a, b = normal(ROWS, 64, dtype=BF16), normal(64, 64, dtype=BF16, seed=1)
    y = poison(ROWS, 96)
    run(text, a, np.ascontiguousarray(b.T), y)
    assert (y[:, :64] == a.astype(np.float32) @ b.astype(np.float32)).all()
    pairs = np.ascontiguousarray(y[:, 80:]).view(np.uint32)
    assert (pairs == 0x40004000).all()  # two bf16 2.0
