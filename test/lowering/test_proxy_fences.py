"""Shared memory that threads touch and an engine writes or reads next: a proxy fence stands between.

The emulator's checkers find an engine's access that no fence orders after a thread's.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.errors import VerifyError
from attn_mlir.lowering.stages import ws_to_nvvm
from attn_mlir.validation.ws.kernels import (
    ROWS,
    copy_op,
    kernel,
    lowered,
    normal,
    poison,
    product,
    role,
    run,
    threads,
)

BF16 = ml_dtypes.bfloat16
SEEDS = [None, 1, 2]
MATRIX = "memref<?x32xf32>"


TYPES = '!t = !ws.tile<vector<128x32xf32>, "shared">\n!ring = !ws.ring<!t, 1, 1>\n'


def loaded(ring: str, number: str = "") -> str:
    """A ring's slot filled with the first rows of %x; values of this number."""
    slot = f"%s{number}"
    return f"""{slot} = "ws.acquire"({ring}, %c0) : (!ring, i32) -> !t
    {copy_op("copy_in", "%x", slot, "%c0, %c0", "0, 1", f"{MATRIX}, !t")}
    "ws.commit"({slot}) {{by = "copy_engine"}} : (!t) -> ()
    """


def each(body: str) -> str:
    """A body for two tiles of rows, from %row on."""
    return f"""%c2 = arith.constant 2 : i32
    %c128 = arith.constant 128 : i32
    scf.for %i = %c0 to %c2 step %c1 : i32 {{
      %row = arith.muli %i, %c128 : i32
      {body}
    }}"""


LOAD = f"""%s = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
      {copy_op("copy_in", "%x", "%s", "%row, %c0", "0, 1", f"{MATRIX}, !t")}
      "ws.commit"(%s) {{by = "copy_engine"}} : (!t) -> ()"""
DOUBLE = """%s = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
      %f = "ws.load"(%s) : (!t) -> !full
      %g2 = "ws.map"(%f) ({
      ^bb0(%e: f32, %a: i32, %b: i32):
        %v = arith.addf %e, %e : f32
        "ws.yield"(%v) : (f32) -> ()
      }) {operandSegmentSizes = array<i32: 1>} : (!full) -> !full"""


def doubled() -> str:
    """y = 2 x, in the slot: threads write it where the copy engine loads the next 128 rows."""
    rows = f"""{DOUBLE}
      %part = "ws.columns"(%s) {{first = 0 : i64}} : (!t) -> !t
      "ws.store"(%g2, %part) : (!full, !t) -> ()
      "ws.barrier"() : () -> ()
      %h = "ws.load"(%s) : (!t) -> !full
      "ws.release"(%s) {{by = "threads"}} : (!t) -> ()
      "ws.store_global"(%h, %y, %row, %c0)
        {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}}
        : (!full, memref<?x?xf32>, i32, i32) -> ()"""
    return kernel(
        [("x", "in", MATRIX, ("m", "")), ("y", "out", "memref<?x?xf32>", ("my", "n"))],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
        + role("load", each(LOAD), first=4)
        + threads(each(rows)),
        types=TYPES,
        columns=32,
    )


def handed_on() -> str:
    """y = 2 x, in the slot, which a token hands to who copies it out."""
    double = f"""{DOUBLE}
      %token = "ws.acquire"(%tokens, %c0) : (!tokens, i32) -> none
      "ws.store"(%g2, %s) : (!full, !t) -> ()
      "ws.commit"(%token) {{by = "threads"}} : (none) -> ()
      "ws.release"(%s) {{by = "threads"}} : (!t) -> ()"""
    leave = f"""%s = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
      %token = "ws.wait"(%tokens, %c0) : (!tokens, i32) -> none
      {copy_op("copy_out", "%s", "%y", "%row, %c0", "0, 1", f"!t, {MATRIX}")}
      "ws.release"(%token) {{by = "threads"}} : (none) -> ()
      "ws.release"(%s) {{by = "copy_engine"}} : (!t) -> ()"""
    return kernel(
        [("x", "in", MATRIX, ("m", "")), ("y", "out", MATRIX, ("my", ""))],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring\n'
        '  %tokens = "ws.alloc_ring"() {label_name = "tokens"} : () -> !tokens'
        + role("load", each(LOAD), first=4)
        + threads(each(double))
        + role("leave", each(leave), first=5),
        types=TYPES + "!tokens = !ws.ring<none, 1, 1>\n",
        columns=32,
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("text", [doubled(), handed_on()], ids=["loaded again", "handed on"])
def test_a_consumer_that_writes_into_a_slot_that_others_fill(text: str, seed: int | None) -> None:
    """It is loaded again, or copied out by who gets a token for what threads wrote."""
    x = normal(2 * ROWS, 32, dtype=np.float32)
    y = poison(2 * ROWS, 32)
    run(text, x, y, seed=seed)
    assert (y == 2 * x).all()


def test_a_consumer_that_only_reads_has_a_fence_too() -> None:
    """What it reads may still be on its way when the copy engine learns that the slot is free."""
    text = doubled()
    kept = '"ws.store"(%g2, %part) : (!full, !t) -> ()'
    assert kept in text
    read = str(lowered(text.replace(kept, ""), ws_to_nvvm("sm_100a")))
    assert read.count("nvvm.fence.proxy") == 1


@pytest.mark.parametrize(
    ("between", "fences"), [("", 1), ('%f3 = "ws.load"(%s) : (!t) -> !full', 2)]
)
def test_one_fence_before_two_handovers_in_a_row(between: str, fences: int) -> None:
    """Of what is accessed behind a fence it says nothing."""
    release = '"ws.release"(%s) {by = "threads"} : (!t) -> ()'
    one = kernel(
        [("x", "in", MATRIX, ("m", ""))],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
        '\n  %other = "ws.alloc_ring"() {label_name = "o"} : () -> !ring'
        + role("load", loaded("%ring") + loaded("%other", "2"), first=4)
        + threads(f"""%s = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
    %s2 = "ws.wait"(%other, %c0) : (!ring, i32) -> !t
    %f = "ws.load"(%s) : (!t) -> !full
    %f2 = "ws.load"(%s2) : (!t) -> !full
    {release.replace("%s", "%s2")}
    {between}
    {release}"""),
        types=TYPES,
        columns=32,
    )  # fmt: skip
    assert str(lowered(one, ws_to_nvvm("sm_100a"))).count("nvvm.fence.proxy") == fences


def test_a_role_that_hands_a_slot_on_unread_has_no_fence() -> None:
    text = filled_by_threads(*SLOT)
    fences = str(lowered(text, ws_to_nvvm("sm_100a"))).count("nvvm.fence.proxy")
    assert fences == 1  # of who fills it


FILL = """%zero = arith.constant 0.0 : f32
    %blank = "ws.fill"(%zero) : (f32) -> !full
    %f = "ws.map"(%blank) ({
    ^bb0(%e: f32, %i: i32, %j: i32):
      %v = "ws.element"(%a, %i, %j) {operandSegmentSizes = array<i32: 1, 2>} : (memref<?x64xbf16>, i32, i32) -> bf16
      "ws.yield"(%v) : (bf16) -> ()
    }) {operandSegmentSizes = array<i32: 1>} : (!full) -> !ws.frag<vector<128x64xbf16>>
    """


def filled_by_threads(take: str, give: str, use: str, declared: str = "", types: str = "") -> str:
    """y = a b, where threads write A to shared memory and hand it over as these texts say."""
    text = product("bf16", 64, 64, "kn")
    start = text.index('%sa = "ws.acquire"')
    end = text.index('%sb = "ws.acquire"')
    text = text[:start] + text[end:]
    text = text.replace('%sa = "ws.wait"(%as, %c0) : (!as, i32) -> !a', use)
    text = text.replace(
        '"ws.release"(%sa) {by = "tensor_core"}', '"ws.release"(%sa) {by = "threads"}'
    )
    store = '"ws.store"(%f, %tile) : (!ws.frag<vector<128x64xbf16>>, !a) -> ()\n'
    fill = role("fill", f"{FILL}{take}{store}{give}", first=8, warps=4, lanes=32)
    marker = '\n  "ws.role"()'
    at = text.index(marker)
    return text[:at].replace("!accs = ", types + "!accs = ") + declared + fill + text[at:]


SLOT = (  # to `filled_by_threads`, where A lies in a ring's slot
    '%tile = "ws.acquire"(%as, %c0) : (!as, i32) -> !a\n',
    '"ws.commit"(%tile) {by = "threads"} : (!a) -> ()',
    '%sa = "ws.wait"(%as, %c0) : (!as, i32) -> !a',
)


def check_product(text: str, seed: int | None) -> None:
    a, b = normal(ROWS, 64, dtype=BF16), normal(64, 64, dtype=BF16, seed=1)
    y = poison(ROWS, 64)
    run(text, a, b, y, seed=seed)
    assert (y == a.astype(np.float32) @ b.astype(np.float32)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_product_reads_a_slot_that_a_thread_releases(seed: int | None) -> None:
    """The product is waited for by way of D, so that a thread may release A."""
    text = filled_by_threads(*SLOT)
    check_product(text, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_product_reads_a_buffer_that_another_ring_guards(seed: int | None) -> None:
    """A lies in a buffer; the slot that is handed over holds a row vector that nobody reads."""
    text = filled_by_threads(
        """%s = "ws.acquire"(%as, %c0) : (!as, i32) -> !token
    %tile = "ws.at"(%buffer, %c0) : (!ws.buffer<!a, 1>, i32) -> !a
    """,
        '"ws.commit"(%s) {by = "threads"} : (!token) -> ()',
        """%token = "ws.wait"(%as, %c0) : (!as, i32) -> !token
    %sa = "ws.at"(%buffer, %c0) : (!ws.buffer<!a, 1>, i32) -> !a""",
        declared='\n  %buffer = "ws.alloc_buffer"() {label_name = "buffer"} : () -> !ws.buffer<!a, 1>',
        types='!token = !ws.tile<vector<4xi32>, "shared">\n',
    )
    text = text.replace("!as = !ws.ring<!a, 1, 1>\n", "")
    text = text.replace("!accs = ", "!as = !ws.ring<!token, 1, 1>\n!accs = ", 1)
    text = text.replace(
        '"ws.release"(%sa) {by = "threads"} : (!a)',
        '"ws.release"(%token) {by = "threads"} : (!token)',
    )
    check_product(text, seed)


@pytest.mark.parametrize(
    ("lanes", "message"),
    [(1, "expects a fragment in a role of whole warps"), (32, "expects a role with one lane")],
)
def test_no_role_both_stores_to_a_slot_and_copies_it_out(lanes: int, message: str) -> None:
    """So a fence between the two is never needed: it stands at the handover from one to the other."""
    body = f"""%s = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
    %one = arith.constant 1.0 : f32
    %f = "ws.fill"(%one) : (f32) -> !ws.frag<vector<32x32xf32>>
    "ws.store"(%f, %s) : (!ws.frag<vector<32x32xf32>>, !t) -> ()
    {copy_op("copy_out", "%s", "%y", "%c0, %c0", "0, 1", f"!t, {MATRIX}")}
    "ws.commit"(%s) {{by = "threads"}} : (!t) -> ()"""
    read = """%s = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
    "ws.release"(%s) {by = "threads"} : (!t) -> ()"""
    text = kernel(
        [("y", "out", MATRIX, ("m", ""))],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
        + role("both", body, first=0, lanes=lanes)
        + role("read", read, first=1),
        types='!t = !ws.tile<vector<32x32xf32>, "shared">\n!ring = !ws.ring<!t, 1, 1>\n',
    )
    with pytest.raises(VerifyError, match=message):
        lowered(text, ws_to_nvvm("sm_100a"))
