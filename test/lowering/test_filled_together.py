"""Rings that several agents fill, copies of rows by threads, and rings of tokens, executed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.errors import LaunchError, VerifyError
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.ws.checks import check, refused
from attn_mlir.validation.ws.kernels import (
    ROWS,
    bundle,
    compiled,
    copy_op,
    kernel,
    normal,
    poison,
    product,
    role,
    run,
)

BF16 = ml_dtypes.bfloat16
SEEDS = [None, 1, 2]


def copy_rows(target: str, kinds: str, body: str, column: str = "%c0") -> str:
    """`ws.copy_rows` from %x; the region sees %row and yields %from."""
    return f""""ws.copy_rows"(%x, {target}, %c0, {column}) ({{
    ^bb0(%row: i32):
      {body}
      "ws.yield"(%from) : (i32) -> ()
    }}) {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2, 0>}}
      : ({kinds}, i32, i32) -> ()"""


IN_TABLE = """%at = arith.addi %first, %row : i32
      %from = "ws.element"(%table, %at) {operandSegmentSizes = array<i32: 1, 1>} : (memref<?xi32>, i32) -> i32"""
LOOP = """%tile = arith.constant {rows} : i32
    %n = "ws.extent"(%table) {{dim = 0 : i64}} : (memref<?xi32>) -> i32
    scf.for %first = %c0 to %n step %tile : i32 {{
      {body}
    }}"""


def gather(
    rows: int, columns: int, element: str, warps: int, stages: int = 2, first: int = 0
) -> str:
    """y[i] = x[table[i]], or zeros where the table has no row; the copy engine writes y."""
    kinds = f"memref<?x{columns}x{element}>, !t"
    fill = f"""%slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
      {copy_rows("%slot", kinds, IN_TABLE)}
      "ws.commit"(%slot) {{by = "thread_copies"}} : (!t) -> ()"""
    leave = f"""%slot = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
      {copy_op("copy_out", "%slot", "%y", "%first, %c0", "0, 1", f"!t, memref<?x{columns}x{element}>")}
      "ws.release"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""
    return kernel(
        [
            ("x", "in", f"memref<?x{columns}x{element}>", ("m", "")),
            ("table", "in", "memref<?xi32>", ("n",)),
            ("y", "out", f"memref<?x{columns}x{element}>", ("my", "")),
        ],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
        + role("gather", LOOP.format(rows=rows, body=fill), first=first, warps=warps, lanes=32)
        + role("leave", LOOP.format(rows=rows, body=leave), first=first + warps),
        types=f"""!t = !ws.tile<vector<{rows}x{columns}x{element}>, "shared">
!ring = !ws.ring<!t, {stages}, 1>
""",
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("rows", "columns", "element", "warps", "target"),
    [
        (32, 64, "bf16", 4, "sm_100a"),
        (32, 64, "bf16", 4, "sm_90a"),
        (16, 192, "f16", 2, "sm_100a"),  # three lines
        (32, 80, "f16", 1, "sm_100a"),  # 10 units in a row, which do not divide 32 threads
        (8, 64, "f32", 1, "sm_90a"),  # two lines
    ],
)
def test_rows_by_a_table(
    rows: int, columns: int, element: str, warps: int, target: str, seed: int | None
) -> None:
    dtype = {"bf16": BF16, "f16": np.float16, "f32": np.float32}[element]
    x = normal(50, columns, dtype=dtype)
    table = np.random.default_rng(1).integers(-3, 55, 3 * rows).astype(np.int32)
    y = np.full((3 * rows, columns), np.nan, dtype)
    device = EmulatorDevice() if seed is None else EmulatorDevice("adversarial", seed)
    compiled(gather(rows, columns, element, warps), target)(x, table, y, device=device)
    exists = (table >= 0) & (table < 50)
    assert exists.any() and not exists.all()
    assert (y == np.where(exists[:, None], x[np.clip(table, 0, 49)], 0)).all()


@pytest.mark.parametrize(("first", "warps"), [(1, 4), (3, 2), (2, 8), (4, 4)])
def test_a_role_that_begins_inside_a_warpgroup(first: int, warps: int) -> None:
    """Its warps alone run it, and the role behind it, in the last one's warpgroup, runs as well."""
    x, table = normal(50, 64, dtype=np.float16), np.arange(128, dtype=np.int32)[::-1] % 60
    y = np.full((128, 64), np.nan, np.float16)
    made = compiled(gather(64, 64, "f16", warps, first=first), "sm_90a")
    made(x, table.copy(), y, device=EmulatorDevice(check="all"))
    assert (y == np.where(table[:, None] < 50, x[table.clip(0, 49)], 0)).all()


def test_a_row_of_several_lines_is_looked_up_once() -> None:
    """By 64 threads, 16 rows of three lines: a thread has a unit of each line of two rows."""
    text = compiled(gather(16, 192, "f16", 2), "sm_100a").bundle.ptx
    assert text.count("cp.async.cg.shared.global") == 2 * 3
    assert text.count("ld.global") == 2


def gather_ahead(rows: int, columns: int, element: str, warps: int) -> str:
    """As `gather`, of tensors with columns of run-time extent; a step reads the next one's entries."""
    entries = f"!ws.frag<vector<{rows}xi32>>"

    def read(result: str, at: str) -> str:
        return f"""%{result} = "ws.load_global"(%table, {at})
      {{dims = array<i32: 0>, operandSegmentSizes = array<i32: 1, 1>}}
      : (memref<?xi32>, i32) -> {entries}"""

    loop = LOOP.format(rows=rows, body="BODY")
    fill = f"""%next = arith.addi %first, %tile : i32
      {read("ahead", "%next")}
      %slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
      "ws.copy_rows"(%x, %slot, %c0, %column, %entries) ({{
      ^bb0(%row: i32, %entry: i32):
        "ws.yield"(%entry) : (i32) -> ()
      }}) {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2, 1>}}
        : (memref<?x?x{element}>, !t, i32, i32, {entries}) -> ()
      "ws.commit"(%slot) {{by = "thread_copies"}} : (!t) -> ()
      scf.yield %ahead : {entries}"""
    carried = f"iter_args(%entries = %begin) -> ({entries}) : i32"
    turns = loop.replace(": i32 {", f"{carried} {{").replace("scf.for", "%end = scf.for")
    columns_from = f"""%step = arith.constant {columns} : i32
    %turn = "ws.extent"(%table) {{dim = 0 : i64}} : (memref<?xi32>) -> i32
    %zero = arith.subi %turn, %turn : i32
    %column = arith.muli %zero, %step : i32"""
    leave = f"""%slot = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
      {copy_op("copy_out", "%slot", "%y", "%first, %c0", "0, 1", f"!t, memref<?x{columns}x{element}>")}
      "ws.release"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""
    return kernel(
        [
            ("x", "in", f"memref<?x?x{element}>", ("m", "n")),
            ("table", "in", "memref<?xi32>", ("entries",)),
            ("y", "out", f"memref<?x{columns}x{element}>", ("my", "")),
        ],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
        + role(
            "gather",
            columns_from + "\n" + read("begin", "%c0") + "\n" + turns.replace("BODY", fill),
            first=0,
            warps=warps,
            lanes=32,
        )
        + role("leave", loop.replace("BODY", leave), first=warps),
        types=f"""!t = !ws.tile<vector<{rows}x{columns}x{element}>, "shared">
!ring = !ws.ring<!t, 2, 1>
""",
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("rows", "columns", "element", "warps", "n", "target"),
    [
        (32, 64, "bf16", 4, 64, "sm_100a"),
        (64, 64, "bf16", 1, 40, "sm_90a"),  # two entries in a lane; the last columns are not there
        (32, 192, "f16", 2, 192, "sm_90a"),  # 24 units in a row, which do not divide 64 threads
        (96, 32, "f32", 2, 4, "sm_100a"),
    ],
)
def test_rows_by_entries_read_ahead(
    rows: int, columns: int, element: str, warps: int, n: int, target: str, seed: int | None
) -> None:
    dtype = {"bf16": BF16, "f16": np.float16, "f32": np.float32}[element]
    x = normal(50, n, dtype=dtype)
    table = np.random.default_rng(1).integers(-3, 55, 3 * rows).astype(np.int32)
    y = np.full((3 * rows, columns), np.nan, dtype)
    device = EmulatorDevice() if seed is None else EmulatorDevice("adversarial", seed)
    compiled(gather_ahead(rows, columns, element, warps), target)(x, table, y, device=device)
    exists = (table >= 0) & (table < 50)
    assert (y[:, :n] == np.where(exists[:, None], x[np.clip(table, 0, 49)], 0)).all()
    assert (y[:, n:] == 0).all()


def test_entries_are_a_row_to_a_lane() -> None:
    expects = "'ws.copy_rows' op expects rows in multiples of 32 of one row per lane, got a .*16"
    refused(gather_ahead(16, 64, "bf16", 4), expects)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_tensor_core_reads_rows_that_threads_copied(seed: int | None) -> None:
    """Rows of A in reverse order; the fence stands where the issuing thread has waited."""
    text = product("bf16", 64, 64, "nk").replace("%a: memref", "%x: memref")
    take = '%sa = "ws.acquire"(%as, %c0) : (!as, i32) -> !a'
    by_engine = f"""{take}
    {copy_op("copy_in", "%a", "%sa", "%c0, %c0", "0, 1", "memref<?x64xbf16>, !a")}
    "ws.commit"(%sa) {{by = "copy_engine"}} : (!a) -> ()"""
    assert by_engine in text
    reverse = "%last = arith.constant 127 : i32\n%from = arith.subi %last, %row : i32"
    gathers = f"""{take}
    {copy_rows("%sa", "memref<?x64xbf16>, !a", reverse)}
    "ws.commit"(%sa) {{by = "thread_copies"}} : (!a) -> ()"""
    gatherer = role("gather", gathers, first=8, warps=2, lanes=32)
    text = text.replace(by_engine, "").replace(
        '\n}) {sym_name = "k"', gatherer + '\n}) {sym_name = "k"'
    )
    a, b = normal(ROWS, 64, dtype=BF16), normal(64, 64, dtype=BF16, seed=1)
    y = poison(ROWS, 64)
    run(text, a, np.ascontiguousarray(b.T), y, seed=seed)
    assert (y == a[::-1].astype(np.float32) @ b.astype(np.float32)).all()


TOGETHER = 'producers = ["copy_engine", "thread_copies", "threads"]'


def together(turns: int, stages: int, stated: str = TOGETHER) -> str:
    """y = [x, x with its rows in reverse order, 1] of f16: a third of each slot by each agent."""
    loop = f"""%turns = arith.constant {turns} : i32
    %height = arith.constant {ROWS} : i32
    scf.for %turn = %c0 to %turns step %c1 : i32 {{
      %first = arith.muli %turn, %height : i32
      BODY
    }}"""
    take = '%slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t'
    engine = f"""{take}
      %front = "ws.view"(%slot) : (!t) -> !third
      {copy_op("copy_in", "%x", "%front", "%first, %c0", "0, 1", "memref<?x64xf16>, !third")}
      "ws.commit"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""
    reverse = """%m = "ws.extent"(%x) {dim = 0 : i64} : (memref<?x64xf16>) -> i32
      %last = arith.subi %m, %c1 : i32
      %at = arith.addi %first, %row : i32
      %from = arith.subi %last, %at : i32"""
    copies = f"""{take}
      %middle = "ws.columns"(%slot) {{first = 64 : i64}} : (!t) -> !third
      {copy_rows("%middle", "memref<?x64xf16>, !third", reverse)}
      "ws.commit"(%slot) {{by = "thread_copies"}} : (!t) -> ()"""
    ones = f"""{take}
      %right = "ws.columns"(%slot) {{first = 128 : i64}} : (!t) -> !third
      %one = arith.constant 1.0 : f16
      %f = "ws.fill"(%one) : (f16) -> !ones
      "ws.store"(%f, %right) : (!ones, !third) -> ()
      "ws.commit"(%slot) {{by = "threads"}} : (!t) -> ()"""
    leave = f"""%slot = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
      {copy_op("copy_out", "%slot", "%y", "%first, %c0", "0, 1", "!t, memref<?x192xf16>")}
      "ws.release"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""
    return kernel(
        [("x", "in", "memref<?x64xf16>", ("m", "")), ("y", "out", "memref<?x192xf16>", ("my", ""))],
        f'  %ring = "ws.alloc_ring"() {{label_name = "r", {stated}}} : () -> !ring'
        + role("ones", loop.replace("BODY", ones), first=0, warps=4, lanes=32)
        + role("copies", loop.replace("BODY", copies), first=4, warps=2, lanes=32)
        + role("engine", loop.replace("BODY", engine), first=6)
        + role("leave", loop.replace("BODY", leave), first=7),
        types=f"""!t = !ws.tile<vector<128x192xf16>, "shared">
!third = !ws.tile<vector<128x64xf16>, "shared">
!ones = !ws.frag<vector<128x64xf16>>
!ring = !ws.ring<!t, {stages}, 1>
""",
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_three_agents_fill_a_slot(seed: int | None) -> None:
    x = normal(3 * ROWS, 64, dtype=np.float16)
    y = poison(3 * ROWS, 192, dtype=np.float16)
    run(together(3, 1), x, y, seed=seed)
    assert (y == np.concatenate([x, x[::-1], np.ones_like(x)], axis=1)).all()


def test_who_fills_together_is_stated() -> None:
    for stated, told in (
        (
            "",
            r"needs one role that fills slots of ring r\[0\], or to state its producers, got ones",
        ),
        ('producers = ["threads", "copy_engine"]', "states that threads, copy_engine fill slots"),
    ):
        with pytest.raises(VerifyError, match=told):
            check(together(1, 1, stated or 'other = "x"'))


GATHER = gather(32, 64, "bf16", 4)
FILLED = '"ws.commit"(%slot) {by = "thread_copies"}'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (FILLED, '"ws.commit"(%slot) {by = "copy_engine"}',
         "'ws.copy_rows' op expects a slot from ws.acquire that is committed by threads"),
        ("%c0, %c0) ({", "%c0, %c1) ({",
         "'ws.copy_rows' op expects a first column that is known to be a multiple of 8, got one of 1"),
        ("%c0, %c0) ({", "%c0, %first) ({", "known to be a multiple of 8, got one of 1"),
        ('"ws.copy_rows"(%x, %slot, %c0, %c0)', '%wide = arith.muli %first, %c64 : i32\n'
         '"ws.copy_rows"(%x, %slot, %c0, %wide)',
         "'ws.copy_rows' op expects a constant first column of 64 static ones, got a value that is"),
        ("warps = array<i32: 0, 4>, groups = 1 : i64,\n      lanes = 32",
         "warps = array<i32: 0, 1>, groups = 1 : i64,\n      lanes = 1",
         "'ws.copy_rows' op expects a role of whole warps, got one thread"),
        ("warps = array<i32: 0, 4>", "warps = array<i32: 0, 3>",
         "'ws.copy_rows' op expects a multiple of 96 units of 16 bytes, as many as threads of the "
         "group, got 256 in"),
    ],
)  # fmt: skip
def test_copies_of_rows_that_have_no_code(old: str, new: str, message: str) -> None:
    assert old in GATHER
    refused(GATHER.replace(old, new), message)


def test_copies_alone_fill_what_they_commit() -> None:
    wrong = gather(ROWS, 64, "bf16", 4).replace(
        FILLED,
        f"""%z = arith.constant 0.0 : bf16
      %f = "ws.fill"(%z) : (bf16) -> !ws.frag<vector<128x64xbf16>>
      "ws.store"(%f, %slot) : (!ws.frag<vector<128x64xbf16>>, !t) -> ()
      {FILLED}""",
    )
    refused(wrong, "by thread_copies expects a slot that ws.copy_rows alone fills, got ws.store")


def test_engines_read_copies_of_threads_after_a_fence() -> None:
    """The arrival comes when a copy lands; the reader's fence stands between its wait and its use."""
    text = bundle(GATHER).partition(b".visible .entry")[2]
    _, _, reader = text.partition(b"cp.async.mbarrier.arrive.noinc")
    wait, fence, use = (
        reader.index(x) for x in (b"try_wait", b"fence.proxy.async", b"cp.async.bulk.tensor")
    )
    assert wait < fence < use


def turns(*, ordered: bool) -> str:
    """Two roles change a shared vector of ones three times in turns: v = v + v, then v = v + 1."""
    start = """%three = arith.constant 3 : i32
    %one = arith.constant 1.0 : f32
    %v = "ws.at"(%shared, %c0) : (!buffer, i32) -> !vector
    """

    def loop(instance: str, operand: str, following: str) -> str:
        work = f"""%old = "ws.load"(%v) : (!vector) -> !row
      %new = "ws.map"(%old) ({{
      ^bb0(%e: f32, %i: i32):
        %sum = arith.addf %e, {operand} : f32
        "ws.yield"(%sum) : (f32) -> ()
      }}) {{operandSegmentSizes = array<i32: 1>}} : (!row) -> !row
      "ws.store"(%new, %v) : (!row, !vector) -> ()
      """
        if ordered:
            work = f"{taken(instance, 'given', work)}\n{passed(following, 'mine')}"
        return f"scf.for %t = %c0 to %three step %c1 : i32 {{ {work} }}\n"

    def taken(instance: str, name: str, work: str = "") -> str:
        return f"""%{name} = "ws.wait"(%turn, {instance}) : (!ring, i32) -> none
      {work}
      "ws.release"(%{name}) {{by = "threads"}} : (none) -> ()
      """

    def passed(instance: str, name: str) -> str:
        return f"""%{name} = "ws.acquire"(%turn, {instance}) : (!ring, i32) -> none
      "ws.commit"(%{name}) {{by = "threads"}} : (none) -> ()
      """

    begin = """%begin = "ws.fill"(%one) : (f32) -> !row
    "ws.store"(%begin, %v) : (!row, !vector) -> ()
    "ws.barrier"() : () -> ()
    """
    end = """%end = "ws.load"(%v) : (!vector) -> !row
    "ws.store_global"(%end, %y, %c0) {dims = array<i32: 0>, operandSegmentSizes = array<i32: 1, 1, 1>}
      : (!row, memref<?xf32>, i32) -> ()"""
    first = begin + loop("%c0", "%e", "%c1") + (taken("%c0", "last") if ordered else "")
    second = (passed("%c0", "start") if ordered else "") + loop("%c1", "%one", "%c0") + end
    ring = '  %turn = "ws.alloc_ring"() {label_name = "turn"} : () -> !ring' if ordered else ""
    return kernel(
        [("y", "out", "memref<?xf32>", ("m",))],
        f"""  %shared = "ws.alloc_buffer"() {{label_name = "v"}} : () -> !buffer
{ring}"""
        + role("first", start + first, first=0, warps=4, lanes=32)
        + role("second", start + second, first=4, warps=4, lanes=32),
        types="""!vector = !ws.tile<vector<128xf32>, "shared">
!buffer = !ws.buffer<!vector, 1>
!ring = !ws.ring<none, 1, 2>
""",
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_order_what_roles_do(seed: int | None) -> None:
    y = poison(ROWS)
    run(turns(ordered=True), y, seed=seed)
    assert (y == ((1 * 2 + 1) * 2 + 1) * 2 + 1).all()


def test_without_tokens_the_checkers_object() -> None:
    """One role reads what the other has not written, or they race."""
    with pytest.raises(LaunchError, match="uninitialised|race"):
        run(turns(ordered=False), poison(ROWS))
